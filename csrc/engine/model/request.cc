// With hashes, ranks can compare requests without sending them (ledger.h). seal() makes the hashes; if two ranks ask for the
// same, the hashes are equal:
//
//    hash           of                            what for
//    name_hash      set (id and epoch) and name   a rank finds the operation
//    group_hash     set and group                 a rank finds the group
//    content_hash   the other fields (request.h)  a rank sees whether two requests for the operation ask for the same
//
// The order and the width of each field in a hash are the same on all ranks. Each list and text is preceded by its length, so
// {1, 2}, {3} and {1}, {2, 3} give different hashes.
//
// content_hash leaves out `tag`, which is not negotiated, and two facts in which ranks may always differ: whether the rank has
// a value (`absent`), and which of its GPUs the tensor lies on. It includes the number of rows of an allgather and the place
// in an arena, although ranks may differ in these, too. If the numbers of rows or the places differ, the ledger leaves the
// operation to the coordinator. The coordinator puts the numbers of rows of all ranks into the response, and a response to
// requests with different places has no arena (validate.cc).
//
// Requests of other ranks come without hashes, and the decoder seals them (messages.cc).
#include "engine/model/request.h"

#include <algorithm>

#include "base/hash.h"

namespace hvdlite::engine {

namespace {

// The product modulo 2^64. RequestView::bytes() calls it for shapes that nobody has checked yet. So it multiplies unsigned
// numbers, because the overflow of a signed product is undefined.
std::int64_t product(std::span<const std::int64_t> extents) {
  std::uint64_t result = 1;
  for (const std::int64_t extent : extents) result *= static_cast<std::uint64_t>(extent);
  return static_cast<std::int64_t>(result);
}

std::uint64_t hash_of_group(SetId set, std::string_view group) {
  base::Hasher hasher;
  hasher.add(hash_of_name(set, group));
  hasher.add(1);  // so that a group and a tensor of the same name differ
  return hasher.value();
}

// " to rank 1 (tag 0)", for point to point only.
std::string describe_peer(const Request& request) {
  if (!base::is_point_to_point(request.kind)) return "";
  const std::string tag = request.tag == kAny ? "any tag" : "tag " + std::to_string(request.tag);
  const std::string rank =
      request.root == kAny ? "any rank" : "rank " + std::to_string(request.root);
  return (request.kind == base::OpKind::kSend ? " to " : " from ") + rank + " (" + tag + ")";
}

}  // namespace

bool has_possible_size(std::span<const std::int64_t> shape, base::DType dtype) {
  std::int64_t bytes = static_cast<std::int64_t>(base::size_of(dtype));
  for (const std::int64_t extent : shape) {
    if (extent < 0) return false;
    // The division comes before the multiplication, so `bytes` never exceeds the limit and cannot overflow. The loop ignores
    // extents of 0, because other ranks may have rows where this rank has none: one row must have a possible size, too.
    if (extent > 0 && bytes > kMostBytes / extent) return false;
    if (extent > 0) bytes *= extent;
  }
  return true;
}

std::int64_t Request::row_elements() const {
  return product(std::span(shape).subspan(shape.empty() ? 0 : 1));
}

std::size_t RequestView::bytes() const {
  return static_cast<std::size_t>(product(shape)) * base::size_of(dtype);
}

std::uint64_t hash_of_name(SetId set, std::string_view name) {
  base::Hasher hasher;
  hasher.add_pair(set.id, static_cast<std::int32_t>(set.epoch));
  hasher.add_text(name);
  return hasher.value();
}

bool Request::asks(int rank) const {
  if (base::is_point_to_point(kind)) return root == kAny || root == rank;
  return kind != base::OpKind::kAddProcessSet || root == 0 ||
         std::find(splits.begin(), splits.end(), rank) != splits.end();
}

base::DType Request::wire_dtype() const {
  if (wire == Wire::kFloat16) return base::DType::kFloat16;
  if (wire == Wire::kBFloat16) return base::DType::kBFloat16;
  return dtype;
}

void Request::seal() {
  name_hash = hash_of_name(set, name);
  group_hash = group.empty() ? 0 : hash_of_group(set, group);
  count = product(shape);
  base::Hasher of_content;
  // Five small values in one word, each in bits of its own: one step of the hash instead of five.
  of_content.add(
      (std::uint64_t{weighted} << 32) | (std::uint64_t{static_cast<std::uint8_t>(wire)} << 24) |
      (std::uint64_t{static_cast<std::uint8_t>(kind)} << 16) |
      (std::uint64_t{static_cast<std::uint8_t>(dtype)} << 8) | static_cast<std::uint8_t>(op));
  of_content.add_pair(
      (static_cast<std::int32_t>(codec.kind) << 8) | static_cast<int>(codec.between), codec.block);
  of_content.add_pair(root, on_gpu() ? 0 : -1);
  of_content.add_signed(layout);
  of_content.add_double(prescale);
  of_content.add_double(postscale);
  of_content.add_text(group);
  of_content.add_pair(group_size, group_index);
  for (const std::vector<std::int64_t>* list : {&shape, &splits}) {
    of_content.add(list->size());
    for (const std::int64_t extent : *list) of_content.add_signed(extent);
  }
  of_content.add_signed(arena);
  of_content.add_signed(arena_offset);
  content_hash = of_content.value();
}

// Compares without a copy, because a training step that repeats an earlier one calls describes() for each operation
// (interner.cc).
bool RequestView::describes(const Request& request, SetId on) const {
  return name == request.name && on == request.set && group == request.group &&
         static_cast<const RequestValues&>(*this) == request &&
         std::ranges::equal(shape, request.shape) && std::ranges::equal(splits, request.splits);
}

Request RequestView::copy(SetId on) const {
  Request request;
  static_cast<RequestValues&>(request) = *this;
  request.set = on;
  request.name = name;
  request.group = group;
  request.shape.assign(shape.begin(), shape.end());
  request.splits.assign(splits.begin(), splits.end());
  return request;
}

// Row counts and splits may differ between ranks in general. Equal requests have equal row counts and splits, so those of this
// rank's request are repeated.
std::vector<std::int64_t> sizes_of_equal(const Request& request, int members) {
  const auto ranks = static_cast<std::size_t>(members);
  std::vector<std::int64_t> sizes;
  if (request.kind == base::OpKind::kAllgather) sizes.assign(ranks, request.shape[0]);
  for (std::size_t i = 0; request.kind == base::OpKind::kAlltoall && i < ranks; ++i) {
    sizes.insert(sizes.end(), request.splits.begin(), request.splits.end());
  }
  return sizes;
}

std::string display_name(const Request& request) {
  const std::string prefix = std::string(base::name_of(request.kind)) + ".";
  return request.name.starts_with(prefix) ? request.name.substr(prefix.size()) : request.name;
}

std::string describe(const Request& request) {
  return std::string(base::name_of(request.kind)) + " of '" + display_name(request) + "'" +
         describe_peer(request) + " in process set " + std::to_string(request.set.id);
}

}  // namespace hvdlite::engine
