// Which check is made where:
//
//    member:       Request ──► its own checks (intake/check_request.cc)
//                    │
//    coordinator:    └► decoder ──► check_received(Request) ──► tallies, validate() ──► Response
//                                                                                          │
//    member:                           check_fits ◄── check_received(Response) ◄── decoder ◄┘
//
// check_received asks whether a correct rank could have sent this request or response. For this it needs to know only the set.
// If only the slot of a request arrives, nothing is checked again: the request was checked when it arrived in full. check_fits
// compares the response with this rank's own entry. Each response that has no error is compared, also if only its slot arrived,
// because a wrong slot would stand for another tensor.
//
// check_fits checks the arena and the rows first. Then it looks at three fields: content hash, kind and count. If all three are
// equal in the agreed request and in this rank's own, it compares no other field. If one of them differs, with_differences()
// copies this rank's own request, and replaces in the copy the fields that may differ between ranks by those of the agreed
// request. Then == compares all fields of the copy with the agreed request.
// So a field that someone adds to Request (and to seal()) must be equal on all ranks, unless with_differences() copies it.
//
// No check can overflow: sum_is_at_most() subtracts from the limit instead of adding.
#include "engine/negotiation/check_received.h"

#include <algorithm>
#include <string>

#include "engine/model/check_content.h"

namespace hvdlite::engine {

using base::Error;
using base::ErrorCode;
using base::OpKind;

namespace {

void require(bool condition, const Request& request, const char* what) {
  if (!condition) throw Error(ErrorCode::kInternal, describe(request) + ": " + what);
}

// Is the sum at most `most`, and is no value negative?
bool sum_is_at_most(std::span<const std::int64_t> values, std::int64_t most) {
  for (const std::int64_t value : values) {
    if (value < 0 || value > most) return false;
    most -= value;
  }
  return true;
}

// Are there as many row counts as rows_of() needs, and do the rows fit in one tensor?
void check_sizes(const Response& response, std::size_t ranks) {
  const Request& request = *response.request;
  const std::size_t expected = !rows_may_differ(request.kind)       ? 0
                               : request.kind == OpKind::kAllgather ? ranks
                                                                    : ranks * ranks;
  require(response.sizes.size() == expected, request,
          "the number of row counts does not fit the members");
  require(rows_fit_in_tensor(request, response.sizes), request,
          "the members' rows are too many for a tensor");
}

// The row counts of the member with this index: one number, or in an alltoall one number for each receiver.
std::span<const std::int64_t> rows_of(const Response& response, int index, std::size_t ranks) {
  const std::size_t each = response.request->kind == OpKind::kAlltoall ? ranks : 1;
  return std::span(response.sizes).subspan(static_cast<std::size_t>(index) * each, each);
}

// Returns a copy of `mine`, with the values of `agreed` in those fields in which members may differ. check_fits requires that
// the copy equals `agreed`.
Request with_differences(const Request& mine, const Request& agreed) {
  Request expected = mine;
  expected.absent = agreed.absent;
  expected.arena = agreed.arena;
  expected.arena_offset = agreed.arena_offset;
  if ((mine.device < 0) == (agreed.device < 0)) expected.device = agreed.device;
  if (!reduces(mine.kind)) {
    expected.op = agreed.op;
    expected.prescale = agreed.prescale;
    expected.postscale = agreed.postscale;
  }
  if (!moves_data(mine.kind)) {
    // There is no tensor, so these fields mean nothing.
    expected.dtype = agreed.dtype;
    expected.shape = agreed.shape;
    expected.device = agreed.device;
    expected.layout = agreed.layout;
  }
  // For a broadcast `root` is a rank, and for a removal it is a process set. For all other kinds it is a flag or unused.
  if (mine.kind != OpKind::kBroadcast && mine.kind != OpKind::kRemoveProcessSet) {
    expected.root = agreed.root;
  }
  if (mine.kind != OpKind::kAddProcessSet) expected.splits = agreed.splits;
  if (rows_may_differ(mine.kind) && !mine.shape.empty() && !agreed.shape.empty()) {
    expected.shape[0] = agreed.shape[0];
  }
  // These two follow from the other fields, which are compared.
  expected.content_hash = agreed.content_hash;
  expected.count = agreed.count;
  return expected;
}

// Checks an operation for which this rank has not asked. Then this rank has no tensor, so the operation must use no arena, must
// have no rows of this rank, and must not be a broadcast from this rank. A join or a change of sets always fits, because it
// needs nothing of a rank that has not asked.
void check_without_mine(const Response& response, bool joined, const std::vector<int>& members,
                        int index) {
  const Request& agreed = *response.request;
  if (!moves_data(agreed.kind) && agreed.kind != OpKind::kBarrier) return;
  require(joined, agreed, "was decided though this rank has not asked for it");
  require(agreed.arena == 0, agreed, "was decided for an arena in which this rank has no tensor");
  if (rows_may_differ(agreed.kind)) {
    require(sum_is_at_most(rows_of(response, index, members.size()), 0), agreed,
            "was decided with rows that this rank does not have");
  }
  require(
      agreed.kind != OpKind::kBroadcast || agreed.root != members[static_cast<std::size_t>(index)],
      agreed, "was decided although the root is this rank, which has not asked and sends nothing");
}

}  // namespace

bool rows_fit_in_tensor(const Request& request, std::span<const std::int64_t> sizes) {
  // If a row has no bytes, a tensor could hold any number of rows. Then the number is limited only so that sums of row counts
  // do not overflow.
  const std::int64_t row_bytes =
      request.row_elements() * static_cast<std::int64_t>(base::size_of(request.dtype));
  return sum_is_at_most(sizes, row_bytes > 0 ? kMostBytes / row_bytes : kMostBytes);
}

void check_received(const Request& request, SetId set, const std::vector<int>& members) {
  const OpKind kind = request.kind;
  require(request.set == set, request, "was sent for another process set");
  require(!request.name.empty(), request, "has no name");
  require(!base::is_point_to_point(kind), request,
          "is a send or a receive, which ranks do not negotiate");
  require(
      request.arena >= 0 && request.arena_offset >= 0 &&
          (request.arena == 0 || kind == OpKind::kAllreduce),
      request,
      "has an impossible place in an arena, or a place in an arena although it is no allreduce");
  require(!changes_sets(kind) || set.id == 0, request,
          "a change of process sets belongs to process set 0");
  require(kind != OpKind::kRemoveProcessSet || request.root > 0, request,
          "only a process set with an id above 0 can be removed");
  // The sender has made the same checks for its caller. So a fault that is found here is a bug of the sender, and the error
  // becomes Error(Internal). The last argument of check_content is the number of ranks in the job. Only changes of sets use it;
  // they belong to set 0, whose members are all ranks of the job.
  try {
    check_content(request, members, static_cast<int>(members.size()));
  } catch (const Error& error) {
    throw Error(ErrorCode::kInternal,
                std::string("a member has sent a request that it must refuse to its own caller: ") +
                    error.what());
  }
}

void check_received(const Response& response, SetId set, const std::vector<int>& members) {
  const Request& request = *response.request;
  check_received(request, set, members);
  const auto ranks = static_cast<std::int32_t>(members.size());
  require(response.slot >= -1 && response.contributors >= 0 && response.contributors <= ranks &&
              response.divisor >= 0 && response.divisor <= ranks,
          request, "was decided with an impossible slot, divisor or number of contributors");
  // Nobody uses the sizes of a response with an error.
  if (response.error.ok()) check_sizes(response, members.size());
}

void check_fits(const Response& response, const Entry* mine, bool joined,
                const std::vector<int>& members, int index) {
  const Request& agreed = *response.request;
  if (mine == nullptr) return check_without_mine(response, joined, members, index);
  const Request& asked = *mine->request;
  require(agreed.arena == 0 || (mine->arena != nullptr && asked.arena == agreed.arena), asked,
          "was decided for an arena in which this rank's tensor does not lie");
  // The response says how many rows this rank sends. These numbers must be those of this rank's own request. (The agreed shape
  // comes from one member's request, so it may have another number of rows.)
  if (rows_may_differ(agreed.kind) && agreed.kind == asked.kind) {
    const auto rows = rows_of(response, index, members.size());
    const auto own = agreed.kind == OpKind::kAlltoall ? std::span<const std::int64_t>(asked.splits)
                                                      : std::span(asked.shape).first(1);
    require(std::ranges::equal(rows, own), asked,
            "was decided with rows that this rank does not have");
  }
  // The usual case: the requests of all members were equal, and so are the hashes.
  if (asked.content_hash == agreed.content_hash && asked.kind == agreed.kind &&
      asked.count == agreed.count) {
    return;
  }
  require(with_differences(asked, agreed) == agreed, asked,
          "was decided as something other than this rank asked for");
}

}  // namespace hvdlite::engine
