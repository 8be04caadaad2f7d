// How the requests of a set's members become one response:
//
//    1  the pattern is the request of the first member that has asked
//    2  if all pointers in the list point to one request, the members agree, and steps 3 to 5 are left out. This is the usual
//       case: instead of a later request that equals the first one, Coordinator::add stores the pointer to the first one
//    3  each field of kFields is compared, in the order of the table; the first field that differs gives the error
//    4  a broadcast from a root that has joined is an error, and so is a change of process sets if a member that must ask for
//       it has joined
//    5  tensors in different places of arenas are no error: the response then names no arena
//    6  if there is no error, the rows of an allgather or alltoall are collected from all members, and are checked together
//
// The kind of operation is the first row of the table, because it decides which other rows apply. Fields are compared as the
// texts that the error shows. So two values that an error calls different always have different texts.
//
//    three ranks, "x": float32 on rank 0, float16 on rank 1, float32 on rank 2
//    ──► allreduce of 'x' in process set 0: dtype differs: float32 on ranks 0, 2, float16 on rank 1; give them ...
//
// In the engine only the coordinator calls these functions, and its response carries the error. So all ranks get one text. The
// text does not depend on the order of the announcements, because the requests are in the order of the members.
//
// A member that must ask and has no request counts as joined. But perhaps the request is missing because a member has left.
// Then the coordinator replaces the result of these functions by an error about the member that has left.
#include "engine/negotiation/validate.h"

#include <algorithm>
#include <array>

#include "base/text.h"
#include "engine/model/text.h"
#include "engine/negotiation/check_received.h"

namespace hvdlite::engine {
namespace {

using base::changes_sets;
using base::ErrorCode;
using base::moves_data;
using base::OpKind;
using base::ReduceOp;
using base::reduces;
using base::Status;

// The first extent of an allgather or alltoall may differ between ranks, so a star stands for it.
std::string shape_to_compare(const Request& request) {
  if (!rows_may_differ(request.kind)) return format_shape(request.shape);
  std::string text = "[*";
  for (std::size_t i = 1; i < request.shape.size(); ++i) {
    text += ", " + std::to_string(request.shape[i]);
  }
  return text + "]";
}

std::string factors(const Request& request) {
  return "prescale " + base::to_text(request.prescale) + ", postscale " +
         base::to_text(request.postscale);
}

std::string group_of(const Request& request) {
  if (request.group.empty()) return "no group";
  return "member " + std::to_string(request.group_index) + " of " +
         std::to_string(request.group_size) + " of group '" + request.group + "'";
}

// A field that must agree: its name, the kinds of operations that it applies to, its value as text, and the remedy for a
// difference.
struct ComparedField {
  const char* name;
  bool (*applies)(OpKind kind);
  std::string (*text)(const Request& request);
  const char* remedy;
};

// `root` is compared only where it is a rank or an id; elsewhere it is a flag or unused. The splits of an alltoall are not
// compared, because ranks may differ in them (collect_sizes).
constexpr std::array<ComparedField, 13> kFields = {{
    {"kind of operation", [](OpKind) { return true; },
     [](const Request& r) { return std::string(base::name_of(r.kind)); },
     "call the same operation on every rank or use different names"},
    {"dtype", moves_data, [](const Request& r) { return format_dtype(r.dtype, r.layout); },
     "give them one dtype or different names"},
    {"wire dtype", moves_data,
     [](const Request& r) { return std::string(base::name_of(r.wire_dtype())); },
     "compress the tensor alike on every rank"},
    {"codec", moves_data, [](const Request& r) { return base::describe(r.codec); },
     "compress the tensor alike on every rank"},
    {"shape", moves_data, shape_to_compare, "give them one shape or different names"},
    {"reduce op", reduces, [](const Request& r) { return std::string(base::name_of(r.op)); },
     "pass the same op on every rank"},
    {"scaling", reduces, factors,
     "pass the same prescale_factor and postscale_factor on every rank"},
    {"weighting", reduces,
     [](const Request& r) { return std::string(r.weighted ? "weighted" : "without a weight"); },
     "give every rank a weight (0 where it has no data), or none"},
    {"root rank", [](OpKind kind) { return kind == OpKind::kBroadcast; },
     [](const Request& r) { return "root " + std::to_string(r.root); },
     "pass the same root_rank on every rank"},
    {"device", moves_data,
     [](const Request& r) { return std::string(r.device < 0 ? "CPU" : "GPU"); },
     "keep the tensor on the CPU on every rank or on a GPU on every rank"},
    {"memory layout", moves_data,
     [](const Request& r) {
       return r.layout == 0 ? std::string("row-major") : "layout " + std::to_string(r.layout);
     },
     "make the tensor contiguous (or channels_last) on every rank"},
    {"group", [](OpKind) { return true; }, group_of,
     "build the same groups in the same order on every rank"},
    {"process set", changes_sets,
     [](const Request& r) {
       return r.kind == OpKind::kRemoveProcessSet ? "id " + std::to_string(r.root)
                                                  : "ranks " + format_shape(r.splits);
     },
     "pass the same process set on every rank"},
}};

// The members that have to ask and have not, because they have joined. (A request for a new set may say that only the set's
// members ask for it: Request::asks. Then the other ranks need not ask.)
std::vector<int> joined_without_asking(const std::vector<RequestPtr>& requests,
                                       const std::vector<int>& members, const Request& first) {
  std::vector<int> joined;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (!requests[i] && first.asks(members[i])) joined.push_back(members[i]);
  }
  return joined;
}

// "" if all agree, otherwise "float32 on ranks 0-2, float16 on rank 3".
std::string differences(const ComparedField& field, const std::vector<RequestPtr>& requests,
                        const std::vector<int>& members) {
  std::vector<std::pair<std::string, std::vector<int>>> values;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!requests[i]) continue;
    std::string text = field.text(*requests[i]);
    auto found = std::find_if(values.begin(), values.end(),
                              [&](const auto& value) { return value.first == text; });
    if (found == values.end()) found = values.insert(values.end(), {text, {}});
    found->second.push_back(members[i]);
  }
  if (values.size() < 2) return "";
  std::string result;
  for (const auto& [text, ranks] : values) {
    if (!result.empty()) result += ", ";
    result += text + " on " + format_ranks(ranks);
  }
  return result;
}

// Steps 3 and 4. Names only the first fault: if the kinds differ, for example, other differences follow from that.
Status check(const std::vector<RequestPtr>& requests, const std::vector<int>& members,
             const Request& first) {
  for (const ComparedField& field : kFields) {
    if (!field.applies(first.kind)) continue;
    const std::string text = differences(field, requests, members);
    if (!text.empty()) {
      return {ErrorCode::kMismatch,
              describe(first) + ": " + field.name + " differs: " + text + "; " + field.remedy};
    }
  }
  const std::vector<int> joined = joined_without_asking(requests, members, first);
  if (first.kind == OpKind::kBroadcast && std::ranges::count(joined, first.root) > 0) {
    return {ErrorCode::kMismatch,
            describe(first) + ": the root, rank " + std::to_string(first.root) +
                ", has joined and has nothing to send; choose a root that still trains"};
  }
  if (changes_sets(first.kind) && !joined.empty()) {
    return {ErrorCode::kMismatch,
            describe(first) + ": " + format_ranks(joined) + " did not ask for it but " +
                (joined.size() == 1 ? "waits" : "wait") +
                " in join(); change process sets on all ranks before any of them joins"};
  }
  return {};
}

// Response::sizes. A member that has joined has no rows: one 0 in an allgather, a 0 for each receiver in an alltoall.
std::vector<std::int64_t> collect_sizes(const std::vector<RequestPtr>& requests,
                                        const Request& first) {
  std::vector<std::int64_t> sizes;
  for (const RequestPtr& request : requests) {
    if (first.kind == OpKind::kAllgather) {
      sizes.push_back(request ? request->shape[0] : 0);
    } else if (request) {
      sizes.insert(sizes.end(), request->splits.begin(), request->splits.end());
    } else {
      sizes.insert(sizes.end(), requests.size(), 0);
    }
  }
  return sizes;
}

// Do the tensors of all members lie at one place of one arena, or all in none? If not, the allreduce uses no arena.
bool in_one_arena(const std::vector<RequestPtr>& requests, const Request& first) {
  return std::all_of(requests.begin(), requests.end(), [&](const RequestPtr& r) {
    return r && r->arena == first.arena && r->arena_offset == first.arena_offset;
  });
}

}  // namespace

const RequestPtr& first_given(const std::vector<RequestPtr>& requests) {
  return *std::ranges::find_if(requests, [](const RequestPtr& r) { return r != nullptr; });
}

Response validate(const std::vector<RequestPtr>& requests, const std::vector<int>& members) {
  Response response;
  const RequestPtr& first = first_given(requests);
  Request agreed = *first;
  agreed.absent = false;
  for (const RequestPtr& request : requests) {
    if (request && !request->absent) ++response.contributors;
  }
  const bool all_same = std::all_of(requests.begin(), requests.end(),
                                    [&](const RequestPtr& r) { return r == first; });
  if (!all_same) response.error = check(requests, members, agreed);
  if (!all_same && !in_one_arena(requests, agreed)) {
    agreed.arena = agreed.arena_offset = 0;
    // The content hash includes the arena. (The other members compute the hash themselves when they decode the response.)
    agreed.seal();
  }
  if (response.error.ok() && rows_may_differ(agreed.kind)) {
    response.sizes = collect_sizes(requests, agreed);
    // Each member has checked its own rows, but only the coordinator knows the rows of all members.
    if (!rows_fit_in_tensor(agreed, response.sizes)) {
      response.error = {ErrorCode::kInvalidArgument,
                        describe(agreed) +
                            ": the rows of all ranks are together too many for a "
                            "tensor; split them over several calls"};
      response.sizes.clear();
    }
  }
  response.request = std::make_shared<const Request>(std::move(agreed));
  return response;
}

Status refuse_without_joined(const std::vector<RequestPtr>& requests,
                             const std::vector<int>& members) {
  const Request& first = *first_given(requests);
  const bool may_run = first.kind == OpKind::kAllgather && first.root != 0;
  if (!moves_data(first.kind) || first.kind == OpKind::kAllreduce || may_run) return {};
  const std::vector<int> joined = joined_without_asking(requests, members, first);
  if (joined.empty()) return {};
  std::string name(base::name_of(first.kind));
  // Horovod's text writes the kind with a capital letter.
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return {ErrorCode::kMismatch,
          describe(first) + ": " + name + " is not supported with Join at this time, as in " +
              "Horovod: " + format_ranks(joined) + (joined.size() == 1 ? " has" : " have") +
              " joined without asking for it; call it before any rank joins, or set "
              "HVDLITE_HOROVOD_RULES=0 to run it on the ranks that still train"};
}

}  // namespace hvdlite::engine
