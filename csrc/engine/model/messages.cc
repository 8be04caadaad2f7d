// Each type has one list of fields for both directions: fields(wire, value) passes the fields of a type to wire(...). If `wire`
// is an Encoder, it writes them; if it is a Decoder, it reads them. So both sides have the same order, and a new field needs
// one change. Only ResponseList has a list for each direction, because a hit is a whole response at the sender, and only a slot
// at the receiver.
//
//    encode   ─► Encoder(value) ─► put() ─► fields() ─► Encoder(each field) ─► ... ─► base::Writer
//    decode   ─► Decoder(value) ─► get() ─► fields() ─► Decoder(each field) ─► ... ─► base::Reader, finish_decoding()
//
// How a value travels:
//
//    the message         one byte, its place in Message; then its fields
//    number              its bytes
//    enum, bool          one byte
//    text, list, bytes   32 bits with the count; then the elements
//    slots               a list of bytes with one bit for each slot: {0, 2, 9} are the bytes 0b00000101, 0b00000010
//    struct              its fields, with nothing between or around them; nothing for a struct without fields
//
// An example, with the lowest byte of each number first: an Announcement of set 0 (epoch 1) that asks for the slots 0, 2
// and 9. The member has processed 3 response lists, and has read no closing:
//
//    type   id            epoch         seen                      closings                  slots              requests
//    00     00 00 00 00   01 00 00 00   03 00 00 00 00 00 00 00   00 00 00 00 00 00 00 00   02 00 00 00 05 02  00 00 00 00
//
// A decision in a ResponseList travels as its slot alone if it is a hit, and otherwise as -1 and the whole response.
//
// The decoder's checks (docs/security.md has their reason). The Reader checks each access. A count is never believed: a list
// of numbers is allocated only if the message has all bytes of the list, and other lists grow by one decoded element at a
// time. So the memory stays in proportion to the message. get_enum refuses unknown values. finish_decoding() refuses values of
// the right form that no correct rank sends. decode() refuses bytes that are left over.
//
// What does not travel: the hashes and the count of a Request, which seal() computes again, and `tag`, because only collectives
// are sent as Requests.
#include "engine/model/messages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <type_traits>
#include <utility>

#include "base/wire.h"

namespace hvdlite::engine {
namespace {

// `fields` gets a const value to write, and a value that is not const to read. This concept accepts both.
template <typename T, typename Type>
concept Is = std::is_same_v<std::remove_const_t<T>, Type>;

// Lists of these types travel as one block of bytes.
template <typename T>
concept Number = std::is_arithmetic_v<T> || std::is_same_v<T, std::byte>;

// The `fields` functions that put() calls stand after this class. The compiler finds them when it instantiates put(), because
// an Encoder is one of their arguments.
class Encoder {
 public:
  template <typename... Fields>
  void operator()(const Fields&... each) {
    (put(each), ...);
  }
  // Slots travel as a bit vector, because a training step that repeats the last one announces most slots of the cache at once.
  // The receiver gets the slots in ascending order, whatever their order was at the sender.
  void slots(const std::vector<std::uint32_t>& slots) {
    std::vector<std::uint8_t> bits;
    if (!slots.empty()) bits.resize(std::ranges::max(slots) / 8 + 1);
    for (const std::uint32_t slot : slots) {
      bits[slot / 8] |= static_cast<std::uint8_t>(1U << (slot % 8));
    }
    put(bits);
  }
  std::vector<std::byte> take() { return writer_.take(); }

 private:
  void put(const std::string& text) { writer_.put_string(text); }
  void put(const std::span<const std::byte>& bytes) { writer_.put_bytes(bytes); }
  void put(const RequestPtr& request) { put(*request); }
  template <typename T>
  void put(const std::vector<T>& list) {
    if constexpr (Number<T>) {
      writer_.put_vector(list);
    } else {
      writer_.put(static_cast<std::uint32_t>(list.size()));
      for (const T& each : list) put(each);
    }
  }
  template <typename T>
  void put(const T& value) {
    if constexpr (std::is_enum_v<T> || std::is_same_v<T, bool>) {
      writer_.put(static_cast<std::uint8_t>(value));
    } else if constexpr (Number<T>) {
      writer_.put(value);
    } else if constexpr (!std::is_empty_v<T>) {
      fields(*this, value);
    }
  }

  base::Writer writer_;
};

[[noreturn]] void refuse_message(const std::string& why) {
  throw base::Error(base::ErrorCode::kInternal, "a control message " + why);
}

// The finish_decoding functions check what was read, and compute what does not travel. All stand before Decoder, because the
// compiler would not find one that stands after Decoder, and would call finish_decoding(auto&), which does nothing.
void finish_decoding(auto&) {}

// Later code multiplies the extents, and must not overflow.
void finish_decoding(Request& request) {
  if (!has_possible_size(request.shape, request.dtype)) {
    refuse_message("holds a shape that no tensor has");
  }
  request.seal();
}

// A comparison with a NaN is false. So the condition tests whether the value is in the possible range, and negates the result.
void finish_decoding(Inquiry& message) {
  if (!(message.patience >= 0 && message.patience <= 60) ||
      message.operations.size() > Inquiry::kMost) {
    refuse_message("asks with an impossible waiting time, or about too many operations");
  }
}

// Refuses places that no question has. The question that this rank has asked may have fewer places: if a place is beyond its
// end, stall.cc ignores the place.
void finish_decoding(StallReply& message) {
  for (const std::vector<std::uint32_t>* places : {&message.lacks, &message.in_hand}) {
    const auto is_place = [](std::uint32_t place) { return place < Inquiry::kMost; };
    if (places->size() > Inquiry::kMost || !std::ranges::all_of(*places, is_place)) {
      refuse_message("answers about more operations than a question may name");
    }
  }
  if (std::isnan(message.since_exemption) || message.text.size() > StallReply::kMostText) {
    refuse_message("answers with an impossible time, or with too long a text");
  }
  message.text = on_one_line(std::move(message.text));  // it becomes part of a log line
}

// A receive copies as many bytes as its tensor has. So a whole Offer must have the payload that it states.
void finish_decoding(Offer& message) {
  const std::array<std::int64_t, 1> shape = {message.elements};
  if (message.tag < 0 || !has_possible_size(shape, message.dtype) ||
      message.payload.size() != (message.whole ? message.bytes() : 0)) {
    refuse_message("offers an impossible payload");
  }
}

// The smallest stamp is 1 (ReplicatedLedger::send).
void finish_decoding(LedgerSteps& message) {
  const bool one_prepared = message.steps.size() == 1 && message.steps.front().prepared;
  if (message.stamp == 0 || message.stamp > LedgerSteps::kMostStamp ||
      (!one_prepared && !message.payload.empty())) {
    refuse_message(
        "has ledger steps with an impossible stamp, or a payload without one prepared step");
  }
}

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : reader_(bytes) {}
  template <typename... Fields>
  void operator()(Fields&... each) {
    (get(each), ...);
  }
  // The reverse of Encoder::slots.
  void slots(std::vector<std::uint32_t>& slots) {
    std::vector<std::uint8_t> bits;
    get(bits);
    // Each set bit becomes a number, so the numbers may take 32 times the memory of the bits. The limit bounds this memory.
    if (bits.size() > kMostSlots / 8) {
      refuse_message("names " + std::to_string(bits.size()) +
                     " bytes of slots, more than there can be");
    }
    for (std::uint32_t i = 0; i < bits.size() * 8; ++i) {
      if ((bits[i / 8] >> (i % 8)) & 1U) slots.push_back(i);
    }
  }
  bool empty() const { return reader_.empty(); }

 private:
  void get(std::string& text) { text = reader_.get_string(); }
  void get(std::span<const std::byte>& bytes) { bytes = reader_.get_bytes(); }
  void get(bool& yes) { yes = reader_.get<std::uint8_t>() != 0; }
  void get(base::OpKind& kind) { get_enum(kind, base::kNumOpKinds, "kind of operation"); }
  void get(base::DType& dtype) { get_enum(dtype, base::kNumDTypes, "dtype"); }
  void get(base::ReduceOp& op) { get_enum(op, base::kNumReduceOps, "reduce op"); }
  void get(Wire& wire) { get_enum(wire, kNumWires, "wire dtype"); }
  void get(base::CodecKind& kind) { get_enum(kind, base::kNumCodecKinds, "codec"); }
  void get(base::Between& reach) { get_enum(reach, base::kNumBetweens, "reach of a codec"); }
  void get(base::ErrorCode& code) { get_enum(code, base::kNumErrorCodes, "error code"); }
  void get(LedgerSteps::Kind& kind) { get_enum(kind, LedgerSteps::kKinds, "kind of ledger step"); }
  template <typename Enum>
  void get_enum(Enum& value, int limit, const char* what) {
    value = reader_.get_enum<Enum>(limit, what);
  }
  void get(RequestPtr& request) {
    Request decoded;
    get(decoded);
    request = std::make_shared<const Request>(std::move(decoded));
  }
  template <typename T>
  void get(std::vector<T>& list) {
    if constexpr (Number<T>) {
      list = reader_.get_vector<T>();
    } else {
      for (auto count = reader_.get<std::uint32_t>(); count > 0; --count) get(list.emplace_back());
    }
  }
  template <typename T>
  void get(T& value) {
    if constexpr (Number<T>) {
      value = reader_.get<T>();
    } else if constexpr (!std::is_empty_v<T>) {
      fields(*this, value);
      finish_decoding(value);
    }
  }

  base::Reader reader_;
};

// --- the fields of each type ------------------------------------------------------------------------------------------

void fields(auto& wire, Is<SetId> auto& set) { wire(set.id, set.epoch); }

void fields(auto& wire, Is<Request> auto& request) {
  wire(request.set, request.kind, request.dtype, request.op, request.wire, request.codec.kind,
       request.codec.between, request.codec.block, request.absent, request.weighted, request.root,
       request.device, request.layout, request.prescale, request.postscale, request.group_size,
       request.group_index, request.name, request.group, request.shape, request.splits,
       request.arena, request.arena_offset);
}

void fields(auto& wire, Is<Response> auto& response) {
  wire(response.request, response.error.code, response.error.message, response.slot,
       response.contributors, response.divisor, response.value, response.sizes);
}

void fields(auto& wire, Is<Announcement> auto& message) {
  wire(message.set, message.seen, message.closings);
  wire.slots(message.slots);
  wire(message.requests);
}

// When the receiver processes the list, it finds the response of a hit in its response cache.
void fields(Encoder& wire, const ResponseList& message) {
  wire(message.set, message.in_ledger, message.last,
       static_cast<std::uint32_t>(message.decisions.size()));
  for (const Decision& decision : message.decisions) {
    wire(decision.hit ? decision.response->slot : std::int32_t{-1});
    if (!decision.hit) wire(*decision.response);
  }
}

void fields(Decoder& wire, ResponseList& message) {
  std::uint32_t decisions = 0;
  wire(message.set, message.in_ledger, message.last, decisions);
  for (; decisions > 0; --decisions) {
    wire(message.slots.emplace_back());
    if (message.slots.back() < 0) wire(message.responses.emplace_back());
  }
}

void fields(auto& wire, Is<Failure> auto& message) { wire(message.cause); }
void fields(auto& wire, Is<Goodbye> auto& message) { wire(message.answer); }

void fields(auto& wire, Is<OpenOperation> auto& operation) {
  wire(operation.set, operation.kind, operation.name, operation.group, operation.group_size,
       operation.root, operation.tag, operation.waited_for, operation.not_asking);
}

void fields(auto& wire, Is<BlockedReport> auto& message) {
  wire(message.version, message.probe, message.blocked, message.open);
}

void fields(auto& wire, Is<Probe> auto& message) { wire(message.number); }

void fields(auto& wire, Is<Verdict> auto& message) {
  wire(message.set, message.point_to_point, message.names, message.text);
}

void fields(auto& wire, Is<Inquiry::OperationName> auto& operation) {
  wire(operation.set, operation.name);
}

void fields(auto& wire, Is<Inquiry> auto& message) {
  wire(message.number, message.last, message.where, message.patience, message.operations);
}

void fields(auto& wire, Is<StallReply> auto& message) {
  wire(message.number, message.lacks, message.in_hand, message.since_exemption, message.text);
}

void fields(auto& wire, Is<Offer> auto& message) {
  wire(message.set, message.number, message.tag, message.dtype, message.layout, message.elements,
       message.name, message.whole, message.payload);
}

void fields(auto& wire, Is<Clearance> auto& message) { wire(message.number); }
void fields(auto& wire, Is<Coming> auto& message) { wire(message.number); }
void fields(auto& wire, Is<Withdrawal> auto& message) { wire(message.number); }

void fields(auto& wire, Is<Rejection> auto& message) {
  wire(message.number, message.whole, message.why);
}

void fields(auto& wire, Is<Receipt> auto& message) { wire(message.bytes); }

// `kind` comes first: from it the decoder knows whether `content` or `keys` comes last.
void fields(auto& wire, Is<LedgerSteps::Step> auto& step) {
  wire(step.kind, step.absent, step.prepared, step.key);
  if (step.kind == LedgerSteps::Kind::kAnnounce) {
    wire(step.content);
  } else {
    wire(step.keys);
  }
}

void fields(auto& wire, Is<LedgerSteps> auto& message) {
  wire(message.set, message.stamp, message.exceptions, message.steps, message.payload);
}

// Decodes a message of the type with this index in Message. The index is known only at run time, and the type must be known at
// compile time. So each call compares one index, and calls itself for the next one.
template <std::size_t I = 0>
Message decode_as(std::size_t index, Decoder& wire) {
  if constexpr (I < std::variant_size_v<Message>) {
    if (index != I) return decode_as<I + 1>(index, wire);
    std::variant_alternative_t<I, Message> message;
    wire(message);
    return message;
  } else {
    throw base::Error(base::ErrorCode::kInternal,
                      "unknown control message type " + std::to_string(index));
  }
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Encoder wire;
  wire(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& content) { wire(content); }, message);
  return wire.take();
}

Message decode(std::span<const std::byte> bytes) {
  Decoder wire(bytes);
  std::uint8_t index = 0;
  wire(index);
  Message message = decode_as(index, wire);
  if (!wire.empty()) refuse_message("has bytes left over");
  return message;
}

}  // namespace hvdlite::engine
