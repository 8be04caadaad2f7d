// A whole job in one thread: two or three ranks negotiate and reduce through their real engines, while what passes between them
// is changed: control messages (bits, lengths, numbers, order, sender), and the memory that they share (the ledger, flags).
//
// Afterwards every operation has ended on every rank, well or badly; the sanitizers watch the memory of tensors, which is
// allocated to the byte. Where nothing was changed, all results are right: so it is known that the runs reach the end.

#include "fuzz_job.h"

#include <cmath>

#include "engine/negotiation/ledger.h"
#include "fuzz_make.h"
#include "transport/inproc.h"

namespace hvdlite::fuzz {

using base::DType;
using base::OpKind;
using base::ReduceOp;
using engine::Entry;
using engine::Request;

namespace {

constexpr int kRounds = 3;
constexpr int kPassesOfARound = 60;
constexpr int kStill = 8;  // passes without any progress: something was lost
constexpr const char* kWeightedName = "weighted";

}  // namespace

void FuzzedTransport::send_message(int peer, Bytes message) {
  Draw& draw = middleman_.draw;
  if (!middleman_.changes || !draw.one_in(middleman_.rate)) {
    kept_ = message;
    ForwardingTransport::send_message(peer, std::move(message));
    return;
  }
  middleman_.changed = true;
  switch (draw.below(5)) {
    case 0:
      break;  // lost
    case 1:
      ForwardingTransport::send_message(peer, message);
      ForwardingTransport::send_message(peer, kept_.empty() ? message : kept_);
      break;
    case 2:
      ForwardingTransport::send_message(peer, engine::encode(make_message(draw)));
      ForwardingTransport::send_message(peer, std::move(message));
      break;
    default:
      mutate(draw, message);
      ForwardingTransport::send_message(peer, std::move(message));
  }
}

void Rank::submit(Request request) {
  request.seal();
  Submitted& operation = submitted_.emplace_back();
  operation.kind = request.kind;
  operation.name = request.name;
  operation.peer = request.root;
  operation.count = static_cast<std::size_t>(request.elements());
  operation.completion = std::make_shared<engine::Completion>();
  operation.input.assign(operation.count, static_cast<float>(number() + 1));
  operation.output = std::make_unique<float[]>(operation.count);
  Entry entry;
  entry.input = request.absent || operation.count == 0 ? nullptr : operation.input.data();
  const bool gives_output =
      !base::rows_may_differ(request.kind) && request.kind != OpKind::kReducescatter;
  entry.output = operation.count == 0 || !gives_output ? nullptr : operation.output.get();
  entry.completion = operation.completion;
  entry.weight = {number() + 1.0, number() == 0};
  entry.request = std::make_shared<const Request>(std::move(request));
  shared_.recorder.submitted({&entry, 1});
  try {
    shared_.queue.push({&entry, 1});
    ++shared_.counters.submitted;
  } catch (const base::Error&) {
    operation.completion->done = 1;  // its name is in flight from the round before
  }
}

// What every rank got where nothing was changed.
void Rank::check() const {
  expect(!failed(), "an engine failed though nothing was changed");
  for (const Submitted& operation : submitted_) {
    expect(operation.completion->is_done() && !operation.completion->failure,
           "an operation failed though nothing was changed");
    const bool received = operation.kind == OpKind::kRecv;
    if (!received && operation.kind != OpKind::kAllreduce) continue;
    const float sum = transport_->size() == 2 ? 3.0F : 6.0F;
    const float mean =
        transport_->size() == 2 ? 5.0F / 3.0F : 14.0F / 6.0F;  // each value is its weight
    const float wanted = received                          ? static_cast<float>(operation.peer + 1)
                         : operation.name == kWeightedName ? mean
                                                           : sum;
    for (std::size_t i = 0; i < operation.count; ++i) {
      expect(std::abs(operation.output[i] - wanted) < 1e-6F,
             "a result is wrong though nothing was changed");
    }
  }
}

Request request_of(OpKind kind, const char* name, std::int64_t count) {
  Request request;
  request.set = {0, 1};
  request.kind = kind;
  request.op = ReduceOp::kSum;
  request.dtype = DType::kFloat32;
  request.name = name;
  if (kind != OpKind::kBarrier && kind < OpKind::kJoin) request.shape = {count};
  return request;
}

namespace {

// Around the ring of ranks: small, large, and with nothing in it. Each rank posts them in an order of its own.
void submit_messages(Rank& rank, int size, Draw& draw) {
  static constexpr std::int64_t kCounts[] = {0, 5, 9000};
  std::vector<Request> all;
  for (int tag = 0; tag < 3; ++tag) {
    for (const OpKind kind : {OpKind::kSend, OpKind::kRecv}) {
      const bool sends = kind == OpKind::kSend;
      const std::string name = (sends ? "send." : "recv.") + std::to_string(tag);
      Request& request = all.emplace_back(request_of(kind, name.c_str(), 0));
      request.shape = {kCounts[tag]};
      request.root = (rank.number() + (sends ? 1 : size - 1)) % size;
      request.tag = tag;
    }
  }
  for (std::size_t left = all.size(); left > 0; --left) {
    std::swap(all[left - 1], all[draw.below(static_cast<std::uint32_t>(left))]);
    rank.submit(all[left - 1]);
  }
}

// The same on all ranks, in each round: allreduces small and large, in a group and fused, and one of each other kind.
void submit_round(Rank& rank, int size, int round) {
  rank.submit(request_of(OpKind::kAllreduce, "small", 7));
  for (const char* name : {"large.0", "large.1", "large.2"}) {
    rank.submit(request_of(OpKind::kAllreduce, name, 1000));
  }
  Request weighted = request_of(OpKind::kAllreduce, kWeightedName, 300);
  weighted.op = ReduceOp::kAverage;
  weighted.weighted = true;
  rank.submit(weighted);
  Request coded = request_of(OpKind::kAllreduce, "coded", 300);
  coded.codec = {base::CodecKind::kInt8, base::Between::kRanks, 64};
  rank.submit(coded);
  for (int place = 0; place < 2; ++place) {
    Request member = request_of(OpKind::kAllreduce, place == 0 ? "g.0" : "g.1", 50);
    member.group = "g";
    member.group_size = 2;
    member.group_index = place;
    rank.submit(member);
  }
  rank.submit(request_of(OpKind::kAllgather, "gather", 1 + rank.number()));
  rank.submit(request_of(OpKind::kReducescatter, "scatter", 11));
  Request broadcast = request_of(OpKind::kBroadcast, "broadcast", 33);
  broadcast.root = 1;
  rank.submit(broadcast);
  Request alltoall = request_of(OpKind::kAlltoall, "alltoall", 2 * size);
  alltoall.splits.assign(static_cast<std::size_t>(size), 2);
  rank.submit(alltoall);
  rank.submit(request_of(OpKind::kBarrier, "barrier", 0));
  if (round == 0) {
    Request add = request_of(OpKind::kAddProcessSet, "add", 0);
    add.splits = {0, 1};
    rank.submit(add);
  } else if (const engine::SetId pair = rank.set(1); pair.id == 1 && size == 2) {
    Request on_pair = request_of(OpKind::kAllreduce, "pair", 20);
    on_pair.set = pair;
    rank.submit(on_pair);
  }
  if (round == kRounds - 1) {
    Request remove = request_of(OpKind::kRemoveProcessSet, "remove", 0);
    remove.root = 1;
    rank.submit(remove);
  }
}

// The shared memory of the ranks, but for the bells: a byte or a number somewhere in what they agree by.
void scribble(Draw& draw, transport::HostWindow& window) {
  const auto ledger = static_cast<std::uint32_t>(engine::Ledger::bytes({}));
  // Where something is: the head, the first entries of the log, the cells; or any place.
  const std::uint32_t spans[] = {5000, 5000, 20000, ledger};
  const std::uint32_t place = draw.below(65536) % (spans[draw.below(4)] - 8);
  std::byte* at = window.ledger(0) + place;
  switch (draw.below(8)) {
    case 0:
      at = reinterpret_cast<std::byte*>(&window.flags(0, 0)) + place % 300;
      break;
    case 1:  // the counts of what one has told the other, or what that was
      at = reinterpret_cast<std::byte*>(window.mail(0, 1).head) + place % 300;
      break;
    case 2:
      at = reinterpret_cast<std::byte*>(window.payloads(1, 0).head) + place % 300;
      break;
    default:
      break;
  }
  const std::uint64_t number = draw.awkward();
  std::memcpy(at, &number, std::size_t{1} << draw.below(4));
}

}  // namespace

void run_job(Draw& draw) {
  const int size = 2 + static_cast<int>(draw.below(2));
  transport::FabricShape shape;
  shape.size = size;
  shape.tile_bytes = 4096;
  shape.ledger_bytes = engine::Ledger::bytes({});
  if (draw.one_in(2)) shape.mail_bytes = 256;
  const std::uint32_t places =
      draw.below(3);  // one host, one host without shared memory, two hosts
  if (places == 2) shape.hosts = size == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 0, 1};
  const auto fabric = transport::make_fabric(shape);
  base::Config config;
  config.cycle_time = 0;
  config.log_level = base::LogLevel::kOff;
  if (draw.one_in(2)) config.fusion_threshold = 5000;
  if (draw.one_in(3)) config.cache_capacity = 6;
  Middleman middleman{draw};
  middleman.changes = !draw.empty();
  middleman.rate = 2 + draw.below(30);
  const std::uint32_t scribbles = places == 0 ? 10 + draw.below(200) : 0;
  std::deque<Rank> ranks;
  for (int number = 0; number < size; ++number) {
    ranks.emplace_back(std::make_unique<FuzzedTransport>(
                           transport::connect(fabric, number, places != 1), middleman),
                       config);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (Rank& rank : ranks) {
      const bool early = draw.one_in(2);
      if (early) submit_messages(rank, size, draw);
      submit_round(rank, size, round);
      if (!early) submit_messages(rank, size, draw);
    }
    int still = 0;
    for (int pass = 0; pass < kPassesOfARound; ++pass) {
      if (scribbles > 0 && !draw.empty() && draw.one_in(scribbles)) {
        middleman.changed = true;
        scribble(draw, *ranks[0].window());
      }
      bool moved = false;
      for (Rank& rank : ranks) moved = rank.pass() || moved;
      still = moved ? 0 : still + 1;
      if (still == kStill) break;
      if (std::ranges::all_of(ranks, &Rank::done)) break;
    }
    if (round == 1 && draw.one_in(4)) {
      middleman.changed = true;
      ranks.back().submit(request_of(OpKind::kJoin, engine::kJoinName, 0));
    }
  }
  if (!middleman.changed) {
    for (const Rank& rank : ranks) rank.check();
  }
}

}  // namespace hvdlite::fuzz
