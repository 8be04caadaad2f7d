#include "engine/negotiation/check_received.h"

#include <algorithm>
#include <bit>
#include <string>

#include "kernels/kernels.h"

namespace hvdlite::engine {

using base::Error;
using base::ErrorCode;
using base::OpKind;
using base::ReduceOp;

namespace {

void require(bool condition, const Request& request, const char* what) {
  if (!condition) throw Error(ErrorCode::kInternal, describe(request) + ": " + what);
}

bool has_rows(OpKind kind) { return rows_may_differ(kind) || kind == OpKind::kReducescatter; }

// Is the sum at most `most`, and is no value negative?
bool sum_is_at_most(std::span<const std::int64_t> values, std::int64_t most) {
  for (const std::int64_t value : values) {
    if (value < 0 || value > most) return false;
    most -= value;
  }
  return true;
}

void check_received_codec(const Request& request) {
  const bool sums = request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage;
  require(request.kind == OpKind::kAllreduce && sums && !request.on_gpu() &&
              base::is_possible_block(request.codec.block) &&
              kernels::accumulator_of(request.dtype, request.op) == base::DType::kFloat32,
          request,
          "its codec has an impossible block, or does not fit its kind, op, dtype or device");
}

void check_received_reduction(const Request& request, std::size_t ranks) {
  if (request.op == ReduceOp::kAdasum) {
    require(request.kind == OpKind::kAllreduce && base::is_float(request.dtype) &&
                std::has_single_bit(ranks),
            request, "Adasum does not fit its kind, its dtype or the number of members");
    return;
  }
  require(kernels::why_unsupported(request.dtype, request.op).empty(), request,
          "no kernel has this op for this dtype");
}

void check_set_change(const Request& request, SetId set, std::size_t ranks) {
  require(set.id == 0, request, "a change of process sets belongs to process set 0");
  if (request.kind == OpKind::kRemoveProcessSet) {
    require(request.root > 0, request, "only a process set with an id above 0 can be removed");
    return;
  }
  const auto& chosen = request.splits;
  const bool ascending =
      std::ranges::adjacent_find(chosen, std::ranges::greater_equal()) == chosen.end();
  require(!chosen.empty() && ascending && chosen.front() >= 0 &&
              chosen.back() < static_cast<std::int64_t>(ranks),
          request, "the ranks of the new process set are missing, not ascending or not in the job");
}

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

// The rows that the member of this index gives: one number, or in an alltoall one for each member.
std::span<const std::int64_t> rows_of(const Response& response, int index, std::size_t ranks) {
  const std::size_t each = response.request->kind == OpKind::kAlltoall ? ranks : 1;
  return std::span(response.sizes).subspan(static_cast<std::size_t>(index) * each, each);
}

// Copies from `agreed` the fields in which members may differ. All other fields must be equal.
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
    expected.dtype = agreed.dtype;
    expected.shape = agreed.shape;
    expected.device = agreed.device;
    expected.layout = agreed.layout;
  }
  if (mine.kind != OpKind::kBroadcast && mine.kind != OpKind::kRemoveProcessSet) {
    expected.root = agreed.root;
  }
  if (mine.kind != OpKind::kAddProcessSet) expected.splits = agreed.splits;
  if (rows_may_differ(mine.kind) && !mine.shape.empty() && !agreed.shape.empty()) {
    expected.shape[0] = agreed.shape[0];
  }
  expected.content_hash = agreed.content_hash;
  expected.count = agreed.count;
  return expected;
}

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
  const std::int64_t row_bytes =
      request.row_elements() * static_cast<std::int64_t>(base::size_of(request.dtype));
  return sum_is_at_most(sizes, row_bytes > 0 ? kMostBytes / row_bytes : kMostBytes);
}

void check_received(const Request& request, SetId set, const std::vector<int>& members) {
  const OpKind kind = request.kind;
  require(request.set == set, request, "was sent for another process set");
  require(!request.name.empty(), request, "has no name");
  require(!base::is_point_to_point(kind), request,
          "is a send or a receive, on which ranks do not agree");
  require(request.group_size >= 0 &&
              (request.group_size == 0 ||
               (request.group_index >= 0 && request.group_index < request.group_size)),
          request, "has an impossible place in its group");
  require(!request.absent || kind == OpKind::kAllreduce, request,
          "is absent, which only an allreduce can be");
  require(!has_rows(kind) || !request.shape.empty(), request, "a scalar has no rows");
  require(request.arena >= 0 && request.arena_offset >= 0 &&
              (request.arena == 0 || kind == OpKind::kAllreduce),
          request, "has an impossible place in an arena, or has one and is no allreduce");
  if (reduces(kind)) check_received_reduction(request, members.size());
  if (request.codec) check_received_codec(request);
  if (kind == OpKind::kBroadcast) {
    require(std::ranges::binary_search(members, request.root), request,
            "its root is not in the process set");
  }
  if (kind == OpKind::kAlltoall) {
    require(
        request.splits.size() == members.size() && sum_is_at_most(request.splits, request.shape[0]),
        request, "its splits do not fit its rows or the members");
  }
  if (changes_sets(kind)) check_set_change(request, set, members.size());
}

void check_received(const Response& response, SetId set, const std::vector<int>& members) {
  const Request& request = *response.request;
  check_received(request, set, members);
  const auto ranks = static_cast<std::int32_t>(members.size());
  require(response.slot >= -1 && response.contributors >= 0 && response.contributors <= ranks &&
              response.divisor >= 0 && response.divisor <= ranks,
          request, "was decided with an impossible slot, divisor or number of contributors");
  if (response.error.ok()) check_sizes(response, members.size());
}

void check_fits(const Response& response, const Entry* mine, bool joined,
                const std::vector<int>& members, int index) {
  const Request& agreed = *response.request;
  if (mine == nullptr) return check_without_mine(response, joined, members, index);
  const Request& asked = *mine->request;
  require(agreed.arena == 0 || (mine->arena != nullptr && asked.arena == agreed.arena), asked,
          "was decided for an arena in which this rank's tensor does not lie");
  if (rows_may_differ(agreed.kind) && agreed.kind == asked.kind) {
    const auto rows = rows_of(response, index, members.size());
    const auto own = agreed.kind == OpKind::kAlltoall ? std::span<const std::int64_t>(asked.splits)
                                                      : std::span(asked.shape).first(1);
    require(std::ranges::equal(rows, own), asked,
            "was decided with rows that this rank does not have");
  }
  if (asked.content_hash == agreed.content_hash && asked.kind == agreed.kind &&
      asked.count == agreed.count) {
    return;
  }
  require(with_differences(asked, agreed) == agreed, asked,
          "was decided as something other than this rank asked for");
}

}  // namespace hvdlite::engine
