#include "engine/model/messages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace hvdlite::engine {
namespace {

using base::Reader;
using base::Writer;

void put_set(Writer& writer, SetId set) {
  writer.put(set.id);
  writer.put(set.epoch);
}

SetId get_set(Reader& reader) {
  SetId set;
  set.id = reader.get<std::int32_t>();
  set.epoch = reader.get<std::uint32_t>();
  return set;
}

// Slots travel as a bit vector, because a step that repeats the last one announces most slots of the cache at once.
void put_slots(Writer& writer, const std::vector<std::uint32_t>& slots) {
  std::vector<std::uint8_t> bits;
  if (!slots.empty()) bits.resize(*std::max_element(slots.begin(), slots.end()) / 8 + 1);
  for (const std::uint32_t slot : slots) {
    bits[slot / 8] |= static_cast<std::uint8_t>(1U << (slot % 8));
  }
  writer.put_vector(bits);
}

std::vector<std::uint32_t> get_slots(Reader& reader) {
  const auto bits = reader.get_vector<std::uint8_t>();
  // Each set bit becomes a number, so the numbers may take 32 times the memory of the bits. The limit bounds this memory.
  if (bits.size() > kMostSlots / 8) {
    throw base::Error(base::ErrorCode::kInternal, "a control message names " +
                                                      std::to_string(bits.size()) +
                                                      " bytes of slots, more than there can be");
  }
  std::vector<std::uint32_t> slots;
  for (std::uint32_t i = 0; i < bits.size() * 8; ++i) {
    if ((bits[i / 8] >> (i % 8)) & 1U) slots.push_back(i);
  }
  return slots;
}

void put(Writer& writer, const Announcement& message) {
  put_set(writer, message.set);
  writer.put(message.seen);
  writer.put(message.closings);
  put_slots(writer, message.slots);
  writer.put(static_cast<std::uint32_t>(message.requests.size()));
  for (const RequestPtr& request : message.requests) request->encode(writer);
}

void get(Reader& reader, Announcement& message) {
  message.set = get_set(reader);
  message.seen = reader.get<std::uint64_t>();
  message.closings = reader.get<std::uint64_t>();
  message.slots = get_slots(reader);
  for (auto count = reader.get<std::uint32_t>(); count > 0; --count) {
    message.requests.push_back(std::make_shared<const Request>(Request::decode(reader)));
  }
}

void put(Writer& writer, const ResponseList& message) {
  put_set(writer, message.set);
  writer.put(static_cast<std::uint8_t>(message.in_ledger));
  writer.put(message.last);
  writer.put(static_cast<std::uint32_t>(message.decisions.size()));
  for (const Decision& decision : message.decisions) {
    writer.put(static_cast<std::int32_t>(decision.hit ? decision.response->slot : -1));
    if (!decision.hit) decision.response->encode(writer);
  }
}

void get(Reader& reader, ResponseList& message) {
  message.set = get_set(reader);
  message.in_ledger = reader.get<std::uint8_t>() != 0;
  message.last = reader.get<std::int32_t>();
  for (auto count = reader.get<std::uint32_t>(); count > 0; --count) {
    message.slots.push_back(reader.get<std::int32_t>());
    if (message.slots.back() < 0) message.responses.push_back(Response::decode(reader));
  }
}

void put(Writer& writer, const Failure& message) { writer.put_string(message.cause); }
void get(Reader& reader, Failure& message) { message.cause = reader.get_string(); }

void put(Writer&, const FailureSeen&) {}
void get(Reader&, FailureSeen&) {}
void put(Writer& writer, const Goodbye& message) {
  writer.put(static_cast<std::uint8_t>(message.answer));
}
void get(Reader& reader, Goodbye& message) { message.answer = reader.get<std::uint8_t>() != 0; }

void put(Writer&, const GoodbyeSeen&) {}
void get(Reader&, GoodbyeSeen&) {}
void put(Writer&, const Alive&) {}
void get(Reader&, Alive&) {}

void put(Writer& writer, const BlockedReport& message) {
  writer.put(message.version);
  writer.put(message.probe);
  writer.put(static_cast<std::uint8_t>(message.blocked));
  writer.put(static_cast<std::uint32_t>(message.open.size()));
  for (const OpenOperation& operation : message.open) {
    put_set(writer, operation.set);
    writer.put(static_cast<std::uint8_t>(operation.kind));
    writer.put_string(operation.name);
    writer.put_string(operation.group);
    writer.put(operation.group_size);
    writer.put(operation.root);
    writer.put(operation.tag);
    writer.put(static_cast<std::uint8_t>(operation.waited_for));
    writer.put_vector(operation.not_asking);
  }
}

void get(Reader& reader, BlockedReport& message) {
  message.version = reader.get<std::uint64_t>();
  message.probe = reader.get<std::uint64_t>();
  message.blocked = reader.get<std::uint8_t>() != 0;
  for (auto count = reader.get<std::uint32_t>(); count > 0; --count) {
    OpenOperation operation;
    operation.set = get_set(reader);
    operation.kind = reader.get_enum<base::OpKind>(base::kNumOpKinds, "kind of operation");
    operation.name = reader.get_string();
    operation.group = reader.get_string();
    operation.group_size = reader.get<std::int32_t>();
    operation.root = reader.get<std::int32_t>();
    operation.tag = reader.get<std::int32_t>();
    operation.waited_for = reader.get<std::uint8_t>() != 0;
    operation.not_asking = reader.get_vector<std::int32_t>();
    message.open.push_back(std::move(operation));
  }
}

void put(Writer& writer, const Probe& message) { writer.put(message.number); }
void get(Reader& reader, Probe& message) { message.number = reader.get<std::uint64_t>(); }

void put(Writer& writer, const Verdict& message) {
  put_set(writer, message.set);
  writer.put(static_cast<std::uint8_t>(message.point_to_point));
  writer.put(static_cast<std::uint32_t>(message.names.size()));
  for (const std::string& name : message.names) writer.put_string(name);
  writer.put_string(message.text);
}

void get(Reader& reader, Verdict& message) {
  message.set = get_set(reader);
  message.point_to_point = reader.get<std::uint8_t>() != 0;
  for (auto count = reader.get<std::uint32_t>(); count > 0; --count) {
    message.names.push_back(reader.get_string());
  }
  message.text = reader.get_string();
}

void put(Writer& writer, const Inquiry& message) {
  writer.put(message.number);
  writer.put(static_cast<std::uint8_t>(message.last));
  writer.put(static_cast<std::uint8_t>(message.where));
  writer.put(message.patience);
  writer.put(static_cast<std::uint32_t>(message.operations.size()));
  for (const Inquiry::OperationName& operation : message.operations) {
    put_set(writer, operation.set);
    writer.put_string(operation.name);
  }
}

void get(Reader& reader, Inquiry& message) {
  message.number = reader.get<std::uint64_t>();
  message.last = reader.get<std::uint8_t>() != 0;
  message.where = reader.get<std::uint8_t>() != 0;
  message.patience = reader.get<double>();
  const auto count = reader.get<std::uint32_t>();
  if (!(message.patience >= 0 && message.patience <= 60) || count > Inquiry::kMost) {
    throw base::Error(
        base::ErrorCode::kInternal,
        "a control message asks with an impossible waiting time, or about too many operations");
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    Inquiry::OperationName& operation = message.operations.emplace_back();
    operation.set = get_set(reader);
    operation.name = reader.get_string();
  }
}

std::vector<std::uint32_t> get_places(Reader& reader) {
  auto places = reader.get_vector<std::uint32_t>();
  const auto is_place = [](std::uint32_t place) { return place < Inquiry::kMost; };
  if (places.size() > Inquiry::kMost || !std::ranges::all_of(places, is_place)) {
    throw base::Error(base::ErrorCode::kInternal,
                      "a control message answers about more operations than a question may name");
  }
  return places;
}

void put(Writer& writer, const StallReply& message) {
  writer.put(message.number);
  writer.put_vector(message.lacks);
  writer.put_vector(message.in_hand);
  writer.put(message.since_exemption);
  writer.put_string(message.text);
}

void get(Reader& reader, StallReply& message) {
  message.number = reader.get<std::uint64_t>();
  message.lacks = get_places(reader);
  message.in_hand = get_places(reader);
  message.since_exemption = reader.get<double>();
  message.text = reader.get_string();
  if (std::isnan(message.since_exemption) || message.text.size() > StallReply::kMostText) {
    throw base::Error(base::ErrorCode::kInternal,
                      "a control message answers with an impossible time, or with too long a text");
  }
  // The text becomes part of a log line.
  for (char& letter : message.text) {
    if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
  }
}

void put(Writer& writer, const Offer& message) {
  put_set(writer, message.set);
  writer.put(message.number);
  writer.put(message.tag);
  writer.put(static_cast<std::uint8_t>(message.dtype));
  writer.put(message.layout);
  writer.put(message.elements);
  writer.put_string(message.name);
  writer.put(static_cast<std::uint8_t>(message.whole));
  writer.put_bytes(message.payload);
}

void get(Reader& reader, Offer& message) {
  message.set = get_set(reader);
  message.number = reader.get<std::uint64_t>();
  message.tag = reader.get<std::int32_t>();
  message.dtype = reader.get_enum<base::DType>(base::kNumDTypes, "dtype");
  message.layout = reader.get<std::int32_t>();
  message.elements = reader.get<std::int64_t>();
  message.name = reader.get_string();
  message.whole = reader.get<std::uint8_t>() != 0;
  message.payload = reader.get_bytes();
  const std::array<std::int64_t, 1> shape = {message.elements};
  if (message.tag < 0 || !has_possible_size(shape, message.dtype) ||
      message.payload.size() != (message.whole ? message.bytes() : 0)) {
    throw base::Error(base::ErrorCode::kInternal, "a control message offers an impossible payload");
  }
}

void put(Writer& writer, const Clearance& message) { writer.put(message.number); }
void get(Reader& reader, Clearance& message) { message.number = reader.get<std::uint64_t>(); }

void put(Writer& writer, const Coming& message) { writer.put(message.number); }
void get(Reader& reader, Coming& message) { message.number = reader.get<std::uint64_t>(); }

void put(Writer& writer, const Withdrawal& message) { writer.put(message.number); }
void get(Reader& reader, Withdrawal& message) { message.number = reader.get<std::uint64_t>(); }

void put(Writer& writer, const Rejection& message) {
  writer.put(message.number);
  writer.put(static_cast<std::uint8_t>(message.whole));
  writer.put_string(message.why);
}
void get(Reader& reader, Rejection& message) {
  message.number = reader.get<std::uint64_t>();
  message.whole = reader.get<std::uint8_t>() != 0;
  message.why = reader.get_string();
}

void put(Writer& writer, const Receipt& message) { writer.put(message.bytes); }
void get(Reader& reader, Receipt& message) { message.bytes = reader.get<std::uint64_t>(); }

void put(Writer& writer, const LedgerSteps& message) {
  put_set(writer, message.set);
  writer.put(message.stamp);
  writer.put(message.exceptions);
  writer.put(static_cast<std::uint32_t>(message.steps.size()));
  for (const LedgerSteps::Step& step : message.steps) {
    const int flags = (step.absent ? 1 : 0) + (step.prepared ? 2 : 0);
    writer.put(static_cast<std::uint8_t>(static_cast<int>(step.kind) * 4 + flags));
    writer.put(step.key);
    if (step.kind == LedgerSteps::Kind::kAnnounce) {
      writer.put(step.content);
    } else {
      writer.put_vector(step.keys);
    }
  }
  writer.put_bytes(message.payload);
}

void get(Reader& reader, LedgerSteps& message) {
  message.set = get_set(reader);
  message.stamp = reader.get<std::uint64_t>();
  message.exceptions = reader.get<std::uint64_t>();
  for (auto count = reader.get<std::uint32_t>(); count > 0; --count) {
    LedgerSteps::Step& step = message.steps.emplace_back();
    const auto head = reader.get<std::uint8_t>();
    if (head / 4 > static_cast<int>(LedgerSteps::Kind::kList)) {
      throw base::Error(base::ErrorCode::kInternal,
                        "a control message has a step of an unknown kind");
    }
    step.kind = static_cast<LedgerSteps::Kind>(head / 4);
    step.absent = (head & 1) != 0;
    step.prepared = (head & 2) != 0;
    step.key = reader.get<std::uint64_t>();
    if (step.kind == LedgerSteps::Kind::kAnnounce) {
      step.content = reader.get<std::uint64_t>();
    } else {
      step.keys = reader.get_vector<std::uint64_t>();
    }
  }
  const auto payload = reader.get_bytes();
  message.payload.assign(payload.begin(), payload.end());
  const bool one_prepared = message.steps.size() == 1 && message.steps.front().prepared;
  if (message.stamp == 0 || message.stamp > LedgerSteps::kMostStamp ||
      (!one_prepared && !message.payload.empty())) {
    throw base::Error(
        base::ErrorCode::kInternal,
        "a control message has ledger steps with an impossible stamp, or a payload without one "
        "prepared step");
  }
}

// Decodes the alternative of this index.
template <std::size_t I = 0>
Message decode_as(std::size_t index, Reader& reader) {
  if constexpr (I < std::variant_size_v<Message>) {
    if (index != I) return decode_as<I + 1>(index, reader);
    std::variant_alternative_t<I, Message> message;
    get(reader, message);
    return message;
  } else {
    throw base::Error(base::ErrorCode::kInternal,
                      "unknown control message type " + std::to_string(index));
  }
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  Writer writer;
  writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit([&](const auto& content) { put(writer, content); }, message);
  return writer.take();
}

Message decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  const auto index = reader.get<std::uint8_t>();
  Message message = decode_as(index, reader);
  if (!reader.empty()) {
    throw base::Error(base::ErrorCode::kInternal, "a control message has bytes left over");
  }
  return message;
}

}  // namespace hvdlite::engine
