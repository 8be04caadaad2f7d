#include "fuzz_make.h"

#include <array>
#include <numeric>

#include "engine/intake/arenas.h"
#include "fuzz_messages.h"

namespace hvdlite::fuzz {

using base::OpKind;
using engine::Request;
using engine::Response;
using engine::SetId;

namespace {

std::string make_text(Draw& draw) {
  std::string text = "t" + std::to_string(draw.below(8));
  for (std::uint32_t more = draw.below(6); more > 0; --more) {
    text.push_back(static_cast<char>(draw.byte()));
  }
  return text;
}

SetId make_set(Draw& draw) { return {static_cast<std::int32_t>(draw.below(3)), 1 + draw.below(4)}; }

Response make_response(Draw& draw, SetId set) {
  Response response;
  const Request request = make_request(draw, set);
  const bool fails = draw.one_in(4);
  if (fails) response.error = {static_cast<base::ErrorCode>(1 + draw.below(9)), make_text(draw)};
  response.slot = static_cast<std::int32_t>(draw.below(20)) - 1;
  response.contributors = static_cast<std::int32_t>(draw.below(4));
  response.divisor = static_cast<std::int32_t>(draw.below(4));
  response.value = static_cast<std::int32_t>(draw.below(4)) - 1;
  if (request.kind == OpKind::kAllgather) response.sizes = {request.shape[0], 2, 0};
  if (request.kind == OpKind::kAlltoall) response.sizes.assign(9, 1);
  response.request = std::make_shared<const Request>(request);
  return response;
}

engine::Announcement make_announcement(Draw& draw) {
  engine::Announcement message;
  message.set = make_set(draw);
  message.seen = draw.below(4);
  message.closings = draw.below(3);
  for (std::uint32_t more = draw.below(4); more > 0; --more) {
    const std::uint32_t last = message.slots.empty() ? 0 : message.slots.back() + 1;
    message.slots.push_back(last + draw.below(40));
  }
  for (std::uint32_t more = draw.below(4); more > 0; --more) {
    message.requests.push_back(std::make_shared<const Request>(make_request(draw, message.set)));
  }
  return message;
}

engine::ResponseList make_list(Draw& draw) {
  engine::ResponseList message;
  message.set = make_set(draw);
  message.in_ledger = draw.one_in(3);
  for (std::uint32_t more = draw.below(4); more > 0; --more) {
    const bool hit = draw.one_in(2);
    Response response = make_response(draw, message.set);
    if (hit) response.slot = static_cast<std::int32_t>(draw.below(20));
    message.decisions.push_back({std::make_shared<const Response>(std::move(response)), hit});
  }
  return message;
}

engine::LedgerSteps make_steps(Draw& draw) {
  using Kind = engine::LedgerSteps::Kind;
  engine::LedgerSteps message;
  message.set = make_set(draw);
  message.stamp = 1 + draw.below(6);
  message.exceptions = draw.below(4);
  for (std::uint32_t more = draw.below(4); more > 0; --more) {
    engine::LedgerSteps::Step& step = message.steps.emplace_back();
    step.kind = static_cast<Kind>(draw.below(5));
    step.absent = draw.one_in(4);
    step.key = make_request(draw, message.set).name_hash;
    if (step.kind == Kind::kAnnounce) {
      step.content = draw.below(3);
    } else {
      step.keys.assign(draw.below(3), step.key);
    }
  }
  if (message.steps.size() == 1 && draw.one_in(2)) {
    message.steps.front().prepared = true;
    message.payload.resize(draw.below(40));
  }
  return message;
}

engine::BlockedReport make_report(Draw& draw) {
  engine::BlockedReport message;
  message.version = draw.word();
  message.probe = draw.below(3);
  message.blocked = draw.one_in(2);
  for (std::uint32_t more = draw.below(4); more > 0; --more) {
    engine::OpenOperation operation;
    operation.set = make_set(draw);
    operation.kind = static_cast<OpKind>(draw.below(base::kNumOpKinds));
    operation.name = make_text(draw);
    operation.group = draw.one_in(2) ? make_text(draw) : "";
    operation.group_size = static_cast<std::int32_t>(draw.below(4));
    operation.waited_for = draw.one_in(2);
    for (std::uint32_t ranks = draw.below(3); ranks > 0; --ranks) {
      operation.not_asking.push_back(static_cast<std::int32_t>(ranks));
    }
    message.open.push_back(std::move(operation));
  }
  return message;
}

engine::Inquiry make_inquiry(Draw& draw) {
  engine::Inquiry message;
  message.number = draw.word();
  message.last = draw.one_in(2);
  message.where = draw.one_in(2);
  message.patience = draw.below(60);
  for (std::uint32_t more = draw.below(4); more > 0; --more) {
    message.operations.push_back({make_set(draw), make_text(draw)});
  }
  return message;
}

engine::StallReply make_stall_reply(Draw& draw) {
  engine::StallReply message;
  message.number = draw.below(3);
  for (std::uint32_t more = draw.below(4); more > 0; --more) {
    message.lacks.push_back(draw.below(64));
    message.in_hand.push_back(draw.below(64));
  }
  message.since_exemption = draw.below(100) - 50.0;
  message.text = make_text(draw);
  // Whoever tells where it is does so in one line.
  std::erase_if(message.text, [](char letter) { return static_cast<unsigned char>(letter) < ' '; });
  return message;
}

engine::Message make_point_to_point(Draw& draw) {
  const std::uint64_t number = draw.below(4);
  switch (draw.below(6)) {
    case 4:
      return engine::Receipt{draw.below(3) * 1000};
    case 0:
      return engine::Clearance{number};
    case 1:
      return engine::Coming{number};
    case 2:
      return engine::Withdrawal{number};
    case 3:
      return engine::Rejection{number, draw.below(2) == 0, make_text(draw)};
    default:
      break;
  }
  engine::Offer offer;
  offer.set = make_set(draw);
  offer.number = number;
  offer.tag = static_cast<std::int32_t>(draw.below(3));
  offer.dtype = static_cast<base::DType>(draw.below(base::kNumDTypes));
  offer.elements = draw.below(9);
  offer.name = make_text(draw);
  static constexpr std::array<std::byte, 8 * 16> kPayload = {};  // of 8 of the largest
  offer.whole = draw.one_in(2);
  if (offer.whole) offer.payload = std::span(kPayload).first(offer.bytes());
  return offer;
}

}  // namespace

Request make_request(Draw& draw, SetId set) {
  Request request;
  request.set = set;
  request.kind = static_cast<OpKind>(draw.below(base::kNumOpKinds));
  request.dtype = static_cast<base::DType>(draw.below(base::kNumDTypes));
  request.op = draw.one_in(2) ? base::ReduceOp::kSum
                              : static_cast<base::ReduceOp>(draw.below(base::kNumReduceOps));
  request.absent = request.kind == OpKind::kAllreduce && draw.one_in(4);
  request.weighted = draw.one_in(8);
  if (draw.one_in(8)) {
    request.codec.kind = static_cast<base::CodecKind>(draw.below(base::kNumCodecKinds));
    request.codec.between = static_cast<base::Between>(draw.below(base::kNumBetweens));
    request.codec.block = static_cast<std::int32_t>(64 * draw.below(3));
  }
  request.name = make_text(draw);
  for (std::uint32_t more = 1 + draw.below(3); more > 0; --more) {
    request.shape.push_back(static_cast<std::int64_t>(draw.below(9)));
  }
  if (draw.one_in(3)) {
    request.group = make_text(draw);
    request.group_size = 2;
    request.group_index = static_cast<std::int32_t>(draw.below(2));
  }
  if (request.kind == OpKind::kAlltoall) {
    request.shape[0] = 3;
    request.splits = {1, 1, 1};
  }
  if (request.kind == OpKind::kAddProcessSet) request.splits = {0, 2};
  if (request.kind == OpKind::kBroadcast || request.kind == OpKind::kRemoveProcessSet) {
    request.root = static_cast<std::int32_t>(1 + draw.below(2));
  }
  if (request.kind == OpKind::kJoin) request.name = engine::kJoinName;
  request.seal();
  return request;
}

engine::Message make_message(Draw& draw) {
  switch (draw.below(14)) {
    case 0:
    case 1:
      return make_announcement(draw);
    case 2:
    case 3:
    case 4:
      return make_list(draw);
    case 5:
      return engine::Failure{make_text(draw)};
    case 6:
      return make_report(draw);
    case 7:
      return engine::Probe{draw.word()};
    case 8:
      return engine::Verdict{make_set(draw), {make_text(draw), make_text(draw)}, make_text(draw)};
    case 9:
      return make_inquiry(draw);
    case 10:
      return make_stall_reply(draw);
    case 11:
      return make_point_to_point(draw);
    case 12:
      return make_steps(draw);
    default:
      if (draw.one_in(2)) return engine::FailureSeen{};
      if (draw.one_in(2)) return engine::GoodbyeSeen{};
      if (draw.one_in(2)) return engine::Alive{};
      return engine::Goodbye{draw.one_in(2)};
  }
}

void take_address(std::span<const std::byte> bytes) {
  using Address = transport::SharedMemory::Address;
  Address address;
  std::memcpy(static_cast<void*>(&address), bytes.data(), std::min(bytes.size(), sizeof(address)));
  try {
    transport::SharedMemory::open(address, 4096);
  } catch (const base::Error&) {
    return;
  }
  die("an address that nobody gave was opened");
}

}  // namespace hvdlite::fuzz
