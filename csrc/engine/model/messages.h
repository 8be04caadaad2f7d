// The control messages between engines, and their wire form. docs/architecture.md shows which rank sends which message to whom.
// Thread: plain values. Owns: their content. Blocks: no. Throws: the decoders throw Error(Internal) on malformed bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

// Member -> coordinator: the operations that this member now asks for.
struct Announcement {
  SetId set;
  std::uint64_t seen = 0;
  // Of the ledger: the member has announced here all that it had in the ledger up to this closing.
  std::uint64_t closings = 0;
  std::vector<std::uint32_t> slots;  // known to the response cache; one bit each on the wire
  std::vector<RequestPtr> requests;  // in full
};

// Coordinator -> members: the next operations, in order.
struct ResponseList {
  SetId set;
  bool in_ledger = false;  // its place in the order is where the ledger says, not where it arrives
  // The member whose request completed the latest decision; -1: no member's.
  std::int32_t last = -1;
  // Of a hit, the wire carries response->slot only (slot_only after decoding).
  std::vector<Decision> decisions;
  // After decoding: the slot of a hit; -1: the next of `responses`.
  std::vector<std::int32_t> slots;
  std::vector<Response> responses;  // after decoding
};

// A member -> all other members, if the set's ledger is replicated (replicated_ledger.h): steps that this member makes in it.
struct LedgerSteps {
  enum class Kind : std::uint8_t { kAnnounce, kDivert, kClose, kReopen, kList };
  // What a step is about. announce: a unit (Agreement::Unit). divert, reopen: in `keys` those that the coordinator counts. list:
  // its number in `key`, and in `keys` those that it decides.
  struct Step {
    Kind kind = Kind::kAnnounce;
    bool absent = false;
    bool prepared = false;
    std::uint64_t key = 0;
    std::uint64_t content = 0;
    std::vector<std::uint64_t> keys{};
  };
  // Larger stamps than any rank reaches would leave no stamps after them.
  static constexpr std::uint64_t kMostStamp = std::uint64_t{1} << 62;

  SetId set{};
  std::uint64_t stamp = 0;
  // So many exceptions in the log (entries that are not complete units) the sender had read.
  std::uint64_t exceptions = 0;
  std::vector<Step> steps{};
  std::vector<std::byte> payload{};  // of a prepared unit, which is then the only step
};

// Any rank -> all: this rank is about to end for this cause.
struct Failure {
  std::string cause;
};
// The receiver of a Failure has told its user.
struct FailureSeen {};
// Any rank -> all: this rank takes part in nothing more.
struct Goodbye {
  bool answer = false;  // the receiver may have to decide something that the sender has announced
};
// The answer to such a Goodbye: the receiver decides nothing more with the sender. It sent all earlier decisions before this
// message.
struct GoodbyeSeen {};

// A leader of a host -> the leaders of other hosts, at intervals: a sign of life.
struct Alive {};

// An operation that a rank has submitted and that is not agreed, as deadlock detection sees it.
struct OpenOperation {
  SetId set;
  base::OpKind kind = base::OpKind::kAllreduce;
  std::string name;
  std::string group;
  std::int32_t group_size = 0;
  bool waited_for = false;  // a caller of this rank sleeps until it is done
  std::vector<std::int32_t>
      not_asking;         // ranks of the set that need not ask for it (Request::asks)
  std::int32_t root = 0;  // send, recv: as in Request; so is the next
  std::int32_t tag = 0;
  friend bool operator==(const OpenOperation&, const OpenOperation&) = default;
};
// Any rank -> rank 0: all callers of this rank sleep until other ranks submit something (or: they no longer do).
struct BlockedReport {
  std::uint64_t version = 0;  // changes when the rank submits or completes an operation
  std::uint64_t probe = 0;    // the probe that it answers; 0: no probe asked for it
  bool blocked = false;
  std::vector<OpenOperation> open;
};
// Rank 0 -> a rank: are you still blocked?
struct Probe {
  std::uint64_t number = 0;
};
// Rank 0 -> a coordinator, or the ranks of a send or receive: these operations can never complete.
struct Verdict {
  SetId set;
  std::vector<std::string> names;
  std::string text;
  bool point_to_point = false;  // the operations belong to the receiver of this message alone
};

// A rank that has waited for too long -> the ranks that it waits for: have you asked for these operations, and where is your
// program?
struct Inquiry {
  static constexpr std::size_t kMost = 64;
  struct OperationName {
    SetId set;
    std::string name;
    friend bool operator==(const OperationName&, const OperationName&) = default;
  };
  std::uint64_t number = 0;
  bool last = false;    // the sender will give up after this question
  bool where = false;   // a receiver that lacks one of them must say where its program is
  double patience = 1;  // seconds for which the sender waits for the answer
  std::vector<OperationName> operations{};
};
// The answer to an Inquiry.
struct StallReply {
  static constexpr std::size_t kMostText = 4096;
  std::uint64_t number = 0;
  // Operations, by their place in the question, that this rank has not asked for.
  std::vector<std::uint32_t> lacks{};
  std::vector<std::uint32_t> in_hand{};  // operations whose stall this rank looks after itself
  double since_exemption = 0;  // seconds since its stall exemption ended (StallExemption::over_for)
  std::string text{};          // where its program is, or ""
};

// Who sends -> who receives: a message for a receive that fits. Its number tells it from others of the sender.
struct Offer {
  SetId set;
  std::uint64_t number = 0;
  std::int32_t tag = 0;
  base::DType dtype = base::DType::kFloat32;
  std::int32_t layout = 0;
  std::int64_t elements = 0;
  std::string name;    // of the send, for messages to users
  bool whole = false;  // the payload is here; otherwise it comes when it is asked for
  // In the sender's tensor, or in the bytes that were decoded.
  std::span<const std::byte> payload{};

  std::size_t bytes() const { return static_cast<std::size_t>(elements) * base::size_of(dtype); }
};
// Who receives -> who sends: there is a receive for that one, let the payload come.
struct Clearance {
  std::uint64_t number = 0;
};
// Who sends -> who receives: the send was still there. After a Clearance its payload is the next that comes from this rank; after a
// Rejection nothing follows.
struct Coming {
  std::uint64_t number = 0;
};
// Who sends -> who receives: it will never come.
struct Withdrawal {
  std::uint64_t number = 0;
};
// Who receives -> who sends: the receive for it is of something else.
struct Rejection {
  std::uint64_t number = 0;
  bool whole = false;  // the offer's; if it was not, the receive fails only when a Coming answers
  std::string why;
};
// Who receives -> who sends: receives have taken whole messages of so much.
struct Receipt {
  std::uint64_t bytes = 0;
};

using Message = std::variant<Announcement, ResponseList, Failure, FailureSeen, Goodbye,
                             BlockedReport, Probe, Verdict, GoodbyeSeen, Inquiry, StallReply, Alive,
                             Offer, Clearance, Coming, Withdrawal, Rejection, Receipt, LedgerSteps>;

std::vector<std::byte> encode(const Message& message);
// The payload of an Offer stays where it is in the bytes.
Message decode(std::span<const std::byte> bytes);

}  // namespace hvdlite::engine
