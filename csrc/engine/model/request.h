// Process sets; what one rank asks of one (Request) and what all its ranks agreed (Response), with their wire form.
// Thread: plain values; a Request is immutable once sealed. Owns: its strings and vectors. Blocks: no.
// Throws: the decoders Error(Internal) on malformed bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/types.h"
#include "base/wire.h"

namespace hvdlite::engine {

using base::SetId;

// Who is in it, and at which place this rank is.
struct ProcessSet {
  SetId id;
  std::shared_ptr<const std::vector<int>> members;  // global ranks, ascending
  int index = -1;                                   // of this rank among them, -1: not a member

  int size() const { return static_cast<int>(members->size()); }
  bool is_member() const { return index >= 0; }
  int coordinator_rank() const { return members->front(); }
  // -1: not a member.
  int index_of(int rank) const {
    const auto found = std::ranges::lower_bound(*members, rank);
    return found != members->end() && *found == rank ? static_cast<int>(found - members->begin())
                                                     : -1;
  }
};

// As what the elements of an allreduce of GPU memory cross between ranks: as they are, or as narrower floats.
enum class Wire : std::uint8_t { kSame = 0, kFloat16 = 1, kBFloat16 = 2 };
inline constexpr int kNumWires = 3;

// Of a receive: from whichever rank, with whichever tag.
inline constexpr std::int32_t kAny = -1;

// No tensor is larger; so sums of a few sizes do not overflow.
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;
// Can a tensor have this shape? No extent is negative, and the product of those that are not 0 is at most kMostBytes.
bool has_possible_size(std::span<const std::int64_t> shape, base::DType dtype);

struct Request {
  SetId set;
  base::OpKind kind = base::OpKind::kAllreduce;
  base::DType dtype = base::DType::kFloat32;
  base::ReduceOp op = base::ReduceOp::kSum;
  Wire wire = Wire::kSame;
  bool absent = false;  // no value on this rank: contribute the identity, take the result
  bool weighted =
      false;  // an Average in which each rank's value counts as its weight says (Entry::weight)
  // broadcast: global rank; send: the global rank of the receiver; recv: of the sender, or kAny; remove_process_set: the id; add_process_set: 1 if only the new set's members ask;
  // join: 1 if an Average is not to count this rank; allgather: 1 if it may always run without those that have joined
  std::int32_t root = 0;
  std::int32_t tag = 0;  // send, recv: which message between the two ranks is meant; recv: or kAny
  std::int32_t device =
      -1;  // this rank's GPU; that others have theirs at another number is no difference
  std::int32_t layout = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t group_size = 0;
  std::int32_t group_index = 0;
  std::string
      name;  // the key of negotiation; the doors put the kind in front ("allreduce.conv1.weight")
  std::string group;  // empty: none
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> splits;
  // The arena in which the tensor lies on this rank, and where in it; 0: it does not lie in one.
  std::int64_t arena = 0;
  std::int64_t arena_offset = 0;
  // Filled in by seal(); two ranks that ask for the same have the same.
  std::uint64_t name_hash = 0;     // of the set (id and epoch) and the name
  std::uint64_t content_hash = 0;  // of everything else but `absent`, which ranks need not agree on
  std::uint64_t group_hash = 0;    // of the set and the group; 0: no group
  std::int64_t count = 0;          // of elements

  std::int64_t elements() const { return count; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * base::size_of(dtype); }
  // Elements of one row, that is of shape[1:].
  std::int64_t row_elements() const;

  bool on_gpu() const { return device >= 0; }
  // The dtype of what crosses between ranks.
  base::DType wire_dtype() const;
  bool in_group() const { return !group.empty() && group_size > 1; }
  // Is this rank one of those that have to ask? Not every rank of the set is for a new set whose members alone do, and between
  // two ranks.
  bool asks(int rank) const;

  // The last step of building a request: computes what follows from the rest. Nothing may change afterwards but `absent`.
  void seal();
  void encode(base::Writer& writer) const;
  // Sealed. What two ranks do crosses in messages of its own, so that there is no tag.
  static Request decode(base::Reader& reader);
  friend bool operator==(const Request&, const Request&) = default;
};

using RequestPtr = std::shared_ptr<const Request>;

// What every join is called.
inline constexpr const char* kJoinName = "join";

// A request as a caller states it: text and lists are borrowed for the length of the call, and the set has no epoch yet.
struct RequestView {
  std::int32_t set = 0;
  base::OpKind kind = base::OpKind::kAllreduce;
  base::DType dtype = base::DType::kFloat32;
  base::ReduceOp op = base::ReduceOp::kSum;
  Wire wire = Wire::kSame;
  bool absent = false;
  bool weighted = false;
  std::int32_t root = 0;
  std::int32_t tag = 0;
  std::int32_t device = -1;
  std::int32_t layout = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t group_size = 0;
  std::int32_t group_index = 0;
  std::string_view name;
  std::string_view group;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> splits;
  std::int64_t arena = 0;
  std::int64_t arena_offset = 0;
  // No part of the request:
  double weight = 0;       // if it is weighted
  void* stream = nullptr;  // in whose order GPU memory is ready here and now
  bool unnamed = false;    // the name was made for this one call and will not come again

  std::size_t bytes() const;
  // Would copy(set) be this request, once sealed?
  bool describes(const Request& request, SetId set) const;
  // Not sealed.
  Request copy(SetId set) const;
};

// Of set and name, as in Request::name_hash.
std::uint64_t hash_of_name(SetId set, std::string_view name);

// "allreduce of 'conv1.weight' in process set 0", the start of every message about an operation; of two ranks
// "send of 'act' to rank 1 (tag 0) in process set 0".
std::string describe(const Request& request);
// The name without the kind the doors put in front.
std::string display_name(const Request& request);

// Does work(); an error from below names no operation, and with it the user learns where the job was.
template <typename Work>
void naming(const Request& request, Work work) {
  try {
    work();
  } catch (const base::Error& error) {
    throw base::Error(error.code(), describe(request) + ": " + error.what());
  }
}

struct Response {
  // What the members agree on: the request of the first member that gave one. Its arena is 0 unless the tensor lies at one place
  // of one arena on all members.
  RequestPtr request;
  base::Status error;             // not ok: nothing is executed, every member's handle gets it
  std::int32_t slot = -1;         // its place in the response cache, -1: not cached
  std::int32_t contributors = 0;  // members that gave a value
  std::int32_t divisor = 0;       // of an Average; 0: the number of members
  std::int32_t value = -1;        // join: the last rank to join
  std::vector<std::int64_t>
      sizes;  // allgather: rows of each member; alltoall: splits, row = sender

  void encode(base::Writer& writer) const;
  static Response decode(base::Reader& reader);
};

using ResponsePtr = std::shared_ptr<const Response>;

// Slots of the response cache of one process set, whatever the knob says.
inline constexpr std::uint32_t kMostSlots = std::uint32_t{1} << 24;

// A response as the coordinator hands it out; hit says that all members know it under response->slot.
struct Decision {
  ResponsePtr response;
  bool hit = false;
};

}  // namespace hvdlite::engine
