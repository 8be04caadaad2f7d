// Process sets, the operation that one rank of a set asks for (Request), and what all ranks of the set agreed on (Response).
// Thread: plain values; a shared Request (RequestPtr) does not change. Owns: its strings and vectors. Blocks: no.
// Throws: std::bad_alloc; naming() also throws what its comment says.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/codec.h"
#include "base/error.h"
#include "base/types.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::SetId;

// The members of a process set, and the place of this rank among them.
struct ProcessSet {
  SetId id;
  std::shared_ptr<const std::vector<int>> members;  // global ranks, ascending
  int index = -1;                                   // of this rank among them; -1: not a member

  int size() const { return static_cast<int>(members->size()); }
  bool is_member() const { return index >= 0; }
  int coordinator_rank() const { return members->front(); }
  // The index of a global rank among the members; -1: not a member.
  int index_of(int rank) const {
    const auto found = std::ranges::lower_bound(*members, rank);
    return found != members->end() && *found == rank ? static_cast<int>(found - members->begin())
                                                     : -1;
  }
};

// The dtype in which an allreduce of GPU memory moves its elements between ranks: their own, or narrower floats.
enum class Wire : std::uint8_t { kSame = 0, kFloat16 = 1, kBFloat16 = 2 };
inline constexpr int kNumWires = 3;

// For a receive: from any rank, or with any tag.
inline constexpr std::int32_t kAny = -1;

// The largest number of bytes of a tensor. It is so small that a sum of a few such numbers does not overflow.
inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;
// Can a tensor have this shape? No extent may be negative. The element's size times all extents other than 0 must be at most
// kMostBytes.
bool has_possible_size(std::span<const std::int64_t> shape, base::DType dtype);

// The fields that a Request and a RequestView have in common.
struct RequestValues {
  base::OpKind kind = base::OpKind::kAllreduce;
  base::DType dtype = base::DType::kFloat32;
  base::ReduceOp op = base::ReduceOp::kSum;
  Wire wire = Wire::kSame;
  base::Codec codec;    // of an allreduce: how its elements travel
  bool absent = false;  // this rank has no value: it contributes the identity and takes the result
  bool weighted = false;  // an Average that counts each rank's value by its weight (Entry::weight)
  // broadcast: the root's global rank. send: the receiver's global rank. recv: the sender's, or kAny. remove_process_set: the
  // id. add_process_set: 1 if only the new set's members ask. join: 1 if the divisor of an Average does not count this rank
  // while it is joined. allgather: 1 if the allgather runs without the ranks that have joined; 0: the knob horovod_rules
  // decides whether it runs or fails (refuse_without_joined).
  std::int32_t root = 0;
  std::int32_t tag = 0;      // send, recv: the message's tag; recv: or kAny
  std::int32_t device = -1;  // this rank's GPU (ranks may differ in it); -1: host memory
  // 0: row-major, with a dtype that the engine knows. Any other number is the code of another memory layout, or the hash of the
  // name of another dtype (hvdlite/dtypes.py). The engine only compares this number between ranks, and names the dtype in
  // texts.
  std::int32_t layout = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int32_t group_size = 0;
  std::int32_t group_index = 0;
  // The arena in which this rank's tensor lies, and the tensor's offset there in bytes; arena 0: it lies in none.
  std::int64_t arena = 0;
  std::int64_t arena_offset = 0;
  friend bool operator==(const RequestValues&, const RequestValues&) = default;
};

struct Request : RequestValues {
  SetId set;
  // The key of negotiation; the doors put the kind in front ("allreduce.conv1.weight").
  std::string name;
  std::string group;  // empty: none
  std::vector<std::int64_t> shape;
  // alltoall: the number of rows for each member. add_process_set: the global ranks of the new set.
  std::vector<std::int64_t> splits;
  // seal() computes the following four fields. If two ranks ask for the same, these fields are equal.
  std::uint64_t name_hash = 0;  // of the set (id and epoch) and the name
  // The hash of all fields above and in RequestValues, except the set, the name, `absent`, and `tag` (which is not negotiated).
  // Of `device`, it includes only whether it is a GPU.
  std::uint64_t content_hash = 0;
  std::uint64_t group_hash = 0;  // of the set and the group; 0: no group
  std::int64_t count = 0;        // of elements

  std::int64_t elements() const { return count; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * base::size_of(dtype); }
  // The number of elements in one row, that is in shape[1:].
  std::int64_t row_elements() const;

  bool on_gpu() const { return device >= 0; }
  // The dtype that `wire` stands for. A codec may code the elements in fewer bits.
  base::DType wire_dtype() const;
  // A group of one request counts as no group.
  bool in_group() const { return !group.empty() && group_size > 1; }
  // Must `rank`, a member of the set, ask as well before the operation can run? (It need not if it has joined, which this
  // function does not know.) For a new set that only its own members ask for: true if `rank` is one of them. For a send or
  // receive: true for the other rank; with kAny, for every rank. For all other operations: true.
  bool asks(int rank) const;

  // Computes the derived fields. Call it after the last change of any other field except `absent`.
  void seal();
  friend bool operator==(const Request&, const Request&) = default;
};

using RequestPtr = std::shared_ptr<const Request>;

// The name of every join.
inline constexpr const char* kJoinName = "join";
// What stands between the kind and the numbers in the name of an unnamed operation (Numbering).
inline constexpr std::string_view kUnnamed = ".noname.";

// What one rank adds to a weighted request. Ranks may have different weights.
struct Weight {
  double value = 0;     // how much this rank's tensor counts
  bool notice = false;  // this rank gives notice; all members learn of it with the weights
  friend bool operator==(const Weight&, const Weight&) = default;
};

// A request as a caller states it. It borrows text and lists for the length of the call, and its set has no epoch yet.
struct RequestView : RequestValues {
  std::int32_t set = 0;
  std::string_view name;
  std::string_view group;
  std::span<const std::int64_t> shape;
  std::span<const std::int64_t> splits;
  // These are not part of the request:
  Weight weight;           // of this rank, if the request is weighted
  void* stream = nullptr;  // GPU memory is ready after the work already in this stream
  bool unnamed = false;    // the name was made for this call and will not come again

  // Modulo 2^64, because the shape is perhaps not checked yet.
  std::size_t bytes() const;
  // Would copy(set), when sealed, equal `request`?
  bool describes(const Request& request, SetId set) const;
  // The copy is not sealed.
  Request copy(SetId set) const;
};

// The hash of set and name, as in Request::name_hash.
std::uint64_t hash_of_name(SetId set, std::string_view name);

// "allreduce of 'conv1.weight' in process set 0", the beginning of messages to the user about an operation; for point to point
// "send of 'act' to rank 1 (tag 0) in process set 0".
std::string describe(const Request& request);
// The name without the kind that the doors put in front.
std::string display_name(const Request& request);

// Returns work(). The errors of work() do not name the operation. So if work() throws an Error or std::bad_alloc, naming()
// throws an Error whose text begins with the operation's description.
template <typename Work>
auto naming(const Request& request, Work work) {
  try {
    return work();
  } catch (const base::Error& error) {
    throw base::Error(error.code(), describe(request) + ": " + error.what());
  } catch (const std::bad_alloc&) {
    throw base::Error(base::ErrorCode::kSystem, describe(request) + ": " + kNoMemory);
  }
}

struct Response {
  // The agreed content: the request of one of the members that asked, as if that member had a value. Its arena is 0 unless the
  // tensors of all members lie at one offset of one arena. If `error` is not ok, only the request's set and name are certain.
  // In a hit that another rank has sent (Decision), `request` is null.
  RequestPtr request;
  base::Status error;             // not ok: the operation fails with it on every member
  std::int32_t slot = -1;         // in the response cache; -1: not cached
  std::int32_t contributors = 0;  // members with a value
  std::int32_t divisor = 0;       // of an Average; 0: the number of members
  std::int32_t value = -1;        // join: the last rank that joined
  // allgather: the number of rows of each member. alltoall: the splits of each member, one member after the other. Otherwise
  // empty.
  std::vector<std::int64_t> sizes;
};

// Response::sizes if all members have equal requests.
std::vector<std::int64_t> sizes_of_equal(const Request& request, int members);

using ResponsePtr = std::shared_ptr<const Response>;

// The largest number of slots for one process set, whatever HVDLITE_CACHE_CAPACITY is.
inline constexpr std::uint32_t kMostSlots = std::uint32_t{1} << 24;

// A decision of the coordinator. hit: all members know the response under response->slot, so only the slot is sent. A member
// that receives a hit finds the other fields in its response cache.
struct Decision {
  ResponsePtr response;
  bool hit = false;
};

}  // namespace hvdlite::engine
