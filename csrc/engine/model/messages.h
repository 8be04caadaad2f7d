// The control messages between engines, and their wire form. docs/architecture.md shows which rank sends which message to whom.
// Thread: plain values. Owns: their content, except for the payload of an Offer. Blocks: no. Throws: the decoder throws
// Error(Internal) on malformed bytes.
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
  std::uint64_t seen = 0;  // the number of response lists that this member has processed
  // The number of closings (entries of the ledger's log that close the ledger) that this member has read. A closing removes
  // all announced operations from the ledger. This message and earlier ones ask for the removed operations that this member
  // had announced there.
  std::uint64_t closings = 0;
  std::vector<std::uint32_t> slots;  // known to the response cache; one bit each on the wire
  std::vector<RequestPtr> requests;  // in full
};

// Coordinator -> members: the next operations, in order.
struct ResponseList {
  SetId set;
  bool in_ledger = false;  // the ledger says where this list stands in the order
  // Some decisions follow from a member's request. `last` is the index of the member whose request led to the latest of them;
  // -1: no decision of this list follows from a request.
  std::int32_t last = -1;
  // Of a hit, the message contains only the slot. So the decoder leaves this list empty, and fills `slots` and `responses`.
  // From these, SetNegotiation::hear makes the decisions.
  std::vector<Decision> decisions;
  // One number for each decision: the slot, if the decision is a hit; -1: the decision is the next one of `responses`.
  std::vector<std::int32_t> slots;
  std::vector<Response> responses;
};

// A member -> all other members, if each member has a copy of the ledger (replicated_ledger.h): steps that this member makes in
// the ledger.
struct LedgerSteps {
  enum class Kind : std::uint8_t { kAnnounce, kDivert, kClose, kReopen, kList };
  static constexpr int kKinds = 5;
  // Which other fields a step uses depends on its kind. announce: all but `keys`; these fields describe a unit
  // (Agreement::Unit). divert, reopen: `keys` are the keys of undecided operations that some member has asked the coordinator
  // for (Agreement::Upkeep). list: `key` is the number of the response list, and `keys` are the keys of the operations that
  // the list decides. close: none.
  struct Step {
    Kind kind = Kind::kAnnounce;
    bool absent = false;
    bool prepared = false;
    std::uint64_t key = 0;
    std::uint64_t content = 0;
    std::vector<std::uint64_t> keys{};
  };
  // The largest stamp that the decoder accepts. No correct member reaches it. A member's later stamps are not smaller than the
  // stamps that it receives. So if it received a stamp near 2^64, it would have no stamp left.
  static constexpr std::uint64_t kMostStamp = std::uint64_t{1} << 62;

  SetId set{};
  std::uint64_t stamp = 0;
  // The number of exceptions (log entries that are not complete units) that the sender had read when it sent this message.
  std::uint64_t exceptions = 0;
  std::vector<Step> steps{};
  // If the only step announces a prepared unit: what the receiver needs of the sender's input. Otherwise empty.
  std::vector<std::byte> payload{};
};

// Any rank -> other ranks: the sender has failed for this cause, and takes part in no later operation.
struct Failure {
  std::string cause;
};
// The answer to a Failure: the receiver of the Failure has told its user.
struct FailureSeen {};
// Any rank -> all: this rank takes part in no later operation.
struct Goodbye {
  // Must the receiver answer? True if the receiver coordinates a set in which it may still decide operations that the sender
  // has announced.
  bool answer = false;
};
// A coordinator's answer to a Goodbye whose `answer` is true. Before this message the coordinator has sent all decisions in
// which the leaving rank takes part. After this message it sends no such decision.
struct GoodbyeSeen {};

// The leader of a host (its lowest rank) -> the leaders of the other hosts, at intervals: a heartbeat.
struct Alive {};

// An operation that a rank has submitted and that is not agreed (a send or receive: not matched), for deadlock detection.
struct OpenOperation {
  SetId set;
  base::OpKind kind = base::OpKind::kAllreduce;
  std::string name;
  std::string group;
  std::int32_t group_size = 0;
  // True if a caller of the rank waits for this operation, or if the operation has a callback. Also true if one of the two
  // holds for the removal of the operation's set.
  bool waited_for = false;
  // Ranks of the set that need not ask for this operation (Request::asks).
  std::vector<std::int32_t> not_asking;
  std::int32_t root = 0;  // send, recv: root and tag as in Request
  std::int32_t tag = 0;
};
// Any rank -> rank 0. If `blocked` is true: this rank waits only for operations that are not agreed. If it is false: this
// message withdraws the earlier report.
struct BlockedReport {
  std::uint64_t version = 0;  // changes when the rank submits an operation, and when one ends
  std::uint64_t probe = 0;    // the probe that this report answers; 0: it answers none
  bool blocked = false;
  std::vector<OpenOperation> open;
};
// Rank 0 -> a rank: are you still blocked?
struct Probe {
  std::uint64_t number = 0;
};
// Rank 0 -> the coordinator of the set, or (`point_to_point`) a rank that has asked for sends and receives: these operations
// can never complete.
struct Verdict {
  SetId set;
  std::vector<std::string> names;
  std::string text;
  bool point_to_point = false;  // the operations are the receiver's own sends and receives
};

// A rank that has waited for too long -> the ranks that it waits for: have you asked for these operations, and where is your
// program?
struct Inquiry {
  static constexpr std::size_t kMost = 64;  // operations in one question
  struct OperationName {
    SetId set;
    std::string name;
  };
  std::uint64_t number = 0;
  bool last = false;    // after this question the sender may give up
  bool where = false;   // a receiver that lacks an operation must say where its program is
  double patience = 1;  // seconds for which the sender waits for the answer
  std::vector<OperationName> operations{};
};
// The answer to an Inquiry.
struct StallReply {
  static constexpr std::size_t kMostText = 4096;  // bytes
  std::uint64_t number = 0;                       // of the question
  // Operations by their place in the question. lacks: operations for which this rank has not asked. in_hand: operations whose
  // stall this rank reports itself.
  std::vector<std::uint32_t> lacks{};
  std::vector<std::uint32_t> in_hand{};
  double since_exemption = 0;  // seconds since its stall exemption ended (StallExemption::over_for)
  std::string text{};          // where its program is; empty if not asked, or unknown
};

// Sender -> receiver: announces a message. A sender numbers its messages with one ascending count, whichever rank a message
// goes to.
struct Offer {
  SetId set;
  std::uint64_t number = 0;
  std::int32_t tag = 0;
  base::DType dtype = base::DType::kFloat32;
  std::int32_t layout = 0;
  std::int64_t elements = 0;
  std::string name;    // of the send, for error texts
  bool whole = false;  // the payload is in this message; otherwise it follows after a Clearance
  // At the sender the span refers to the tensor, and at the receiver to the bytes from which the Offer was decoded.
  std::span<const std::byte> payload{};

  std::size_t bytes() const { return static_cast<std::size_t>(elements) * base::size_of(dtype); }
};
// Receiver -> sender: there is a receive for this message; send the payload.
struct Clearance {
  std::uint64_t number = 0;
};
// Sender -> receiver: the send had not ended when the Clearance or the Rejection arrived. After a Clearance, this send's
// payload is the next one from the sender. After a Rejection, no payload follows.
struct Coming {
  std::uint64_t number = 0;
};
// Sender -> receiver: the send has failed, and its payload will never come.
struct Withdrawal {
  std::uint64_t number = 0;
};
// Receiver -> sender: the receive for this message has another dtype or size.
struct Rejection {
  std::uint64_t number = 0;
  // As in the Offer. If false, the sender answers with a Coming or a Withdrawal.
  bool whole = false;
  std::string why;
};
// Receiver -> sender: some whole messages no longer wait for a receive. Together they count for `bytes` bytes
// (PointToPoint::counted_bytes).
struct Receipt {
  std::uint64_t bytes = 0;
};

// The place of a type in this list is its number on the wire.
using Message = std::variant<Announcement, ResponseList, Failure, FailureSeen, Goodbye,
                             BlockedReport, Probe, Verdict, GoodbyeSeen, Inquiry, StallReply, Alive,
                             Offer, Clearance, Coming, Withdrawal, Rejection, Receipt, LedgerSteps>;

std::vector<std::byte> encode(const Message& message);
// The payload of a decoded Offer refers to `bytes`, so `bytes` must outlive the Offer.
Message decode(std::span<const std::byte> bytes);

}  // namespace hvdlite::engine
