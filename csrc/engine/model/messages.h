// The control messages between engines and their wire form. docs/architecture.md draws who sends which to whom.
// Thread: plain values. Owns: their content. Blocks: no. Throws: the decoders Error(Internal) on malformed bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

// Member -> coordinator: what this member now asks for.
struct Announcement {
  SetId set;
  std::uint64_t seen = 0;
  std::uint64_t closings = 0;  // of the ledger: what the member had in it then has been announced
  std::vector<std::uint32_t> slots;  // known to the response cache; a bit each on the wire
  std::vector<RequestPtr> requests;  // in full
};

// Coordinator -> members: what to do next, in order.
struct ResponseList {
  SetId set;
  bool in_ledger = false;  // its place is where the ledger says so, not on arrival
  std::int32_t last = -1;  // the member whose request was the last one needed; -1: nobody's
  std::vector<Decision>
      decisions;  // of a hit only response->slot crosses the wire (slot_only after decoding)
  std::vector<std::int32_t>
      slots;  // decoded form: slot of a hit, -1 for the next entry of responses
  std::vector<Response> responses;  // decoded form
};

// Any rank -> all: this rank is about to end because of this.
struct Failure {
  std::string cause;
};
// The receiver of a Failure has told its user.
struct FailureSeen {};
// Any rank -> all: this rank takes part in nothing more.
struct Goodbye {
  bool answer = false;  // the sender has announced something that the receiver may have decided
};
// The receiver of such a Goodbye decides nothing with its sender any more: all that it did is under way before this.
struct GoodbyeSeen {};

// A leader of a host -> those of the others, now and then: here is somebody.
struct Alive {};

// One operation a rank has submitted and that is not agreed, as deadlock detection sees it.
struct OpenOperation {
  SetId set;
  base::OpKind kind = base::OpKind::kAllreduce;
  std::string name;
  std::string group;
  std::int32_t group_size = 0;
  bool waited_for = false;               // a caller of this rank sleeps until it is done
  std::vector<std::int32_t> not_asking;  // ranks of the set that it does not need (Request::asks)
  std::int32_t root = 0;                 // send, recv: as Request's, as is the next
  std::int32_t tag = 0;
  friend bool operator==(const OpenOperation&, const OpenOperation&) = default;
};
// Any rank -> rank 0: all callers of this rank sleep until other ranks submit something (or no longer do).
struct BlockedReport {
  std::uint64_t version = 0;  // changes whenever the rank submitted or completed something
  std::uint64_t probe = 0;    // the probe it answers, 0: on its own account
  bool blocked = false;
  std::vector<OpenOperation> open;
};
// Rank 0 -> a rank: is it still so?
struct Probe {
  std::uint64_t number = 0;
};
// Rank 0 -> a coordinator, or who sends and receives: these operations can never complete.
struct Verdict {
  SetId set;
  std::vector<std::string> names;
  std::string text;
  bool point_to_point = false;  // they are the receiver's own
};

// A rank that has waited for too long -> those it waits for: have you asked for these, and where are you?
struct Inquiry {
  static constexpr std::size_t kMost = 64;
  struct Operation {
    SetId set;
    std::string name;
    friend bool operator==(const Operation&, const Operation&) = default;
  };
  std::uint64_t number = 0;
  bool last = false;    // the sender is about to give up
  bool where = false;   // who lacks one of them shall say where it is
  double patience = 1;  // seconds after which the sender takes no answer for one
  std::vector<Operation> operations{};
};
// The answer.
struct Whereabouts {
  static constexpr std::size_t kMostText = 4096;
  std::uint64_t number = 0;
  std::vector<std::uint32_t>
      lacks{};  // operations, by their place in the question, that this rank has not asked for
  std::vector<std::uint32_t> in_hand{};  // and those whose stall it looks after itself
  double unexcused = 0;  // seconds since it last asked for patience was over (Excuse::over_for)
  std::string text{};    // where its program is, or ""
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
// Who sends -> who receives: its payload is the next that comes from this rank.
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
  std::string why;
};
// Who receives -> who sends: receives have taken whole messages of so much.
struct Receipt {
  std::uint64_t bytes = 0;
};

using Message = std::variant<Announcement, ResponseList, Failure, FailureSeen, Goodbye,
                             BlockedReport, Probe, Verdict, GoodbyeSeen, Inquiry, Whereabouts,
                             Alive, Offer, Clearance, Coming, Withdrawal, Rejection, Receipt>;

std::vector<std::byte> encode(const Message& message);
// The payload of an Offer stays where it is in the bytes.
Message decode(std::span<const std::byte> bytes);

}  // namespace hvdlite::engine
