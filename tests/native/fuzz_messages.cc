// Fuzzes whatever decodes bytes that cross ranks. With clang's libFuzzer it is a fuzz target; without it (gcc) a program:
//
//   hvdlite_fuzz SECONDS [SEED [CORPUS]]    runs the cases, then what is in the folder, then inputs drawn from the seed
//   hvdlite_fuzz --write-corpus FOLDER      some inputs of each kind, to start libFuzzer with
//
// Thread: one. Blocks: no. An input that makes it die is written to fuzz-failure.bin, and replayed by a CORPUS that holds it.

#include "fuzz_messages.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "engine/model/messages.h"
#include "engine/negotiation/coordinator.h"
#include "engine/negotiation/fusion_planner.h"
#include "fuzz_make.h"
#include "transport/frames.h"

namespace hvdlite::fuzz {

using base::Error;
using base::ErrorCode;
using engine::Announcement;
using engine::Coordinator;
using engine::Decision;
using engine::Message;
using engine::ResponseList;

void die(const char* what) {
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

namespace {

// Runs what may refuse its input, in the one way it may.
template <typename Work>
bool accepts(Work work) {
  try {
    work();
    return true;
  } catch (const Error& error) {
    expect(error.code() == ErrorCode::kInternal, "a decoder refused with another code");
    expect(error.what()[0] != '\0', "a decoder refused without a reason");
    return false;
  }
}

// As Cycle makes a list that it may send on of one that it got.
void make_sendable(Message& message) {
  auto* list = std::get_if<ResponseList>(&message);
  if (list == nullptr) return;
  auto full = list->responses.begin();
  for (const std::int32_t slot : list->slots) {
    engine::Response response;
    if (slot >= 0) {
      response.slot = slot;
    } else {
      response = *full++;
    }
    list->decisions.push_back(
        {std::make_shared<const engine::Response>(std::move(response)), slot >= 0});
  }
}

// What is behind the decoder on a coordinator: counting, comparing, deciding, planning, and sending.
void coordinate(const Message& message) {
  const auto* announcement = std::get_if<Announcement>(&message);
  if (announcement == nullptr) return;
  const std::vector<int> members = {0, 1, 2};
  Coordinator coordinator(announcement->set, members, 16, false);
  for (int member = 0; member < 3; ++member) {
    accepts([&] {
      for (const std::uint32_t slot : announcement->slots) {
        coordinator.announce_slot(member, slot, announcement->seen);
      }
    });
    accepts([&] {
      for (const engine::RequestPtr& request : announcement->requests) {
        coordinator.announce(member, request, announcement->seen);
      }
    });
  }
  coordinator.open();
  ResponseList list;
  list.decisions = coordinator.collect();
  std::vector<engine::AgreedOperation> agreed;
  for (const Decision& decision : list.decisions) {
    const engine::Response& response = *decision.response;
    agreed.push_back(
        {response.request, response.contributors, !response.error.ok(), response.divisor});
  }
  std::size_t planned = 0;
  for (const auto& places : engine::plan_fusion(agreed, 1 << 20, 3)) planned += places.size();
  expect(planned == agreed.size(), "the plan lost an operation");
  for (const Decision& decision : list.decisions) {
    if (!decision.hit) engine::describe(*decision.response->request);
  }
  engine::decode(engine::encode(list));
}

void take_message(std::span<const std::byte> bytes) {
  accepts([&] {
    Message message = engine::decode(bytes);
    make_sendable(message);
    const Bytes once = engine::encode(message);
    Message again = engine::decode(once);
    make_sendable(again);
    expect(engine::encode(again) == once, "a message changes when it is decoded and encoded");
    coordinate(message);
  });
}

// The bytes as frames of one pair of ranks, of lengths drawn from the input.
void take_frames(Draw& draw, const Bytes& stream) {
  transport::FrameAssembler assembler;
  accepts([&] {
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t length = std::min<std::size_t>(1 + draw.below(4096), stream.size() - at);
      Bytes message;
      const bool whole = assembler.take({stream.data() + at, length}, &message);
      at += length;
      if (whole) take_message(message);
    }
  });
}

}  // namespace

void decode_raw(std::span<const std::uint8_t> input) {
  take_message(std::as_bytes(input));
  Draw draw(input.subspan(0, std::min<std::size_t>(input.size(), 64)));
  const auto bytes = std::as_bytes(input);
  take_frames(draw, Bytes(bytes.begin(), bytes.end()));
  take_address(bytes);
}

void decode_mutated(Draw& draw) {
  Bytes bytes = engine::encode(make_message(draw));
  Message valid = engine::decode(bytes);
  make_sendable(valid);
  expect(engine::encode(valid) == bytes, "a valid message does not come back as it was");
  if (draw.one_in(4)) {
    Bytes stream = transport::in_frames(bytes);
    if (draw.one_in(2)) mutate(draw, stream);
    take_frames(draw, stream);
    return;
  }
  mutate(draw, bytes);
  take_message(bytes);
}

void run_input(std::span<const std::uint8_t> input) {
  if (input.empty()) return;
  Draw draw(input.subspan(1));
  switch (input[0] % 4) {
    case 0:
      return decode_raw(input.subspan(1));
    case 1:
    case 2:
      return decode_mutated(draw);
    default:
      return run_job(draw);
  }
}

}  // namespace hvdlite::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hvdlite::fuzz::run_input({data, size});
  return 0;
}
