// What the fuzzer and a reading of the code found, each mended: a case dies, or a sanitizer says why, where the mending is taken away.
// (Over 400 lines, because each decoder and each machine has its cases.)

#include <cmath>
#include <cstdio>
#include <functional>
#include <string>

#include "engine/negotiation/ledger.h"
#include "fuzz_job.h"
#include "fuzz_make.h"
#include "fuzz_messages.h"
#include "transport/frames.h"
#include "transport/inproc.h"

namespace hvdlite::fuzz {

using base::Error;
using base::ErrorCode;
using base::OpKind;
using engine::Announcement;
using engine::Decision;
using engine::LedgerSteps;
using engine::Message;
using engine::Request;
using engine::Response;
using engine::ResponseList;
using engine::SetId;

namespace {

constexpr SetId kWorld = {0, 1};

void refuses(const char* what, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) return;
  }
  die((std::string(what) + " was not refused").c_str());
}

// Where in the encoded message the value stands, which is then replaced by another.
template <typename T>
Bytes with(Bytes bytes, const T& value, const T& other) {
  for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); ++at) {
    if (std::memcmp(bytes.data() + at, &value, sizeof(T)) != 0) continue;
    std::memcpy(bytes.data() + at, &other, sizeof(T));
    return bytes;
  }
  die("a case does not find what it wants to change");
}

Announcement announcing(Request request) {
  Announcement message;
  message.set = request.set;
  request.seal();
  message.requests.push_back(std::make_shared<const Request>(std::move(request)));
  return message;
}

// A list with this one response, as a coordinator would have sent it.
ResponseList deciding(Request request, const std::function<void(Response&)>& change = {}) {
  Response response;
  request.seal();
  response.request = std::make_shared<const Request>(std::move(request));
  response.contributors = 2;
  if (change) change(response);
  ResponseList list;
  list.set = kWorld;
  list.decisions.push_back({std::make_shared<const Response>(std::move(response)), false});
  return list;
}

// Two ranks on one host, with shared memory or without it.
class Pair {
 public:
  explicit Pair(bool shares) : draw_({}), middleman_{draw_} {
    middleman_.changes = false;
    transport::FabricShape shape;
    shape.size = 2;
    shape.tile_bytes = 4096;
    shape.ledger_bytes = engine::Ledger::bytes({});
    fabric_ = transport::make_fabric(shape);
    base::Config config;
    config.cycle_time = 0;
    for (int number = 0; number < 2; ++number) {
      ranks_.emplace_back(std::make_unique<FuzzedTransport>(
                              transport::connect(fabric_, number, shares), middleman_),
                          config);
    }
  }
  Rank& rank(int number) { return ranks_[static_cast<std::size_t>(number)]; }
  void pass(int times = 20) {
    for (int i = 0; i < times; ++i) {
      for (Rank& rank : ranks_) rank.pass();
    }
  }
  // As if `from` had sent it.
  void deliver(int from, int to, const Message& message) {
    rank(from).transport().send_message(to, engine::encode(message));
  }

 private:
  Draw draw_;
  Middleman middleman_;
  std::shared_ptr<transport::Fabric> fabric_;
  std::deque<Rank> ranks_;
};

// Rank 1 has asked for `mine` and gets what no coordinator decides: its engine fails, and what it asked for ends.
void fails_on(const char* what, const Request& mine, const ResponseList& list,
              bool shares = false) {
  Pair pair(shares);
  if (!mine.name.empty()) pair.rank(1).submit(mine);
  pair.rank(1).pass();
  pair.deliver(0, 1, list);
  pair.rank(1).pass();
  expect(pair.rank(1).failed() && pair.rank(1).done(), what);
}

// Rank 0, the coordinator, gets an announcement that no member makes.
void coordinator_fails_on(const char* what, const Message& message) {
  Pair pair(false);
  pair.deliver(1, 0, message);
  pair.rank(0).pass();
  expect(pair.rank(0).failed(), what);
}

// Damage done to the ledger while rank 0 has announced something there.
void survives(const char* what, const std::function<void(std::byte*)>& damage,
              std::int64_t count = 1000) {
  Pair pair(true);
  pair.pass(2);
  pair.rank(0).submit(request_of(OpKind::kAllreduce, "x", count));
  pair.rank(0).pass();
  damage(pair.rank(0).window()->ledger(0));
  pair.rank(1).submit(request_of(OpKind::kAllreduce, "x", count));
  pair.pass();
  expect(pair.rank(0).failed() || pair.rank(1).failed(), what);
}

// --- decoders ----------------------------------------------------------------------------------------------------------

void decoding() {
  Announcement slots;
  slots.set = kWorld;
  slots.slots = {200'000'000};
  refuses("a slot beyond all", [&] { engine::decode(engine::encode(slots)); });

  Request odd = request_of(OpKind::kAllreduce, "x", 0x1234567);
  const Bytes whole = engine::encode(announcing(odd));
  for (const std::int64_t extent : {std::int64_t{-1}, std::int64_t{1} << 60}) {
    refuses("a shape that no tensor has",
            [&] { engine::decode(with<std::int64_t>(whole, 0x1234567, extent)); });
  }
  const Bytes failed = engine::encode(
      deciding(odd, [](Response& response) { response.error = {ErrorCode::kTimeout, "QQ"}; }));
  // The code stands before the text's length and the text.
  Bytes unknown = failed;
  const std::string text = "QQ";
  for (std::size_t at = 5; at + 2 <= failed.size(); ++at) {
    if (std::memcmp(failed.data() + at, text.data(), 2) == 0) unknown[at - 5] = std::byte{77};
  }
  refuses("an unknown error code", [&] { engine::decode(unknown); });

  engine::BlockedReport report;
  report.open.push_back({{0x5555555, 0x6666666}, OpKind::kBarrier, "x", "", 0, true, {}});
  Bytes bytes = engine::encode(report);
  const std::uint64_t set = 0x0666'6666'0555'5555;
  for (std::size_t at = 0; at + 9 <= bytes.size(); ++at) {
    if (std::memcmp(bytes.data() + at, &set, 8) == 0) bytes[at + 8] = std::byte{200};
  }
  refuses("an unknown kind of operation", [&] { engine::decode(bytes); });

  refuses("steps without a stamp",
          [&] { engine::decode(engine::encode(LedgerSteps{.set = kWorld})); });
  refuses("a stamp after which there is none", [&] {
    engine::decode(engine::encode(LedgerSteps{.set = kWorld, .stamp = ~std::uint64_t{0}}));
  });
  LedgerSteps steps{.set = kWorld, .stamp = 1, .payload = Bytes(4)};
  refuses("a payload of no unit", [&] { engine::decode(engine::encode(steps)); });
  steps = {.set = kWorld, .stamp = 1, .steps = {{.kind = static_cast<LedgerSteps::Kind>(9)}}};
  refuses("a step of no kind", [&] { engine::decode(engine::encode(steps)); });

  engine::Inquiry inquiry{.number = 1, .patience = 7.25};
  refuses("a question that waits for an hour",
          [&] { engine::decode(with<double>(engine::encode(inquiry), 7.25, 3600)); });
  refuses("a question that waits for no time that is one",
          [&] { engine::decode(with<double>(engine::encode(inquiry), 7.25, std::nan(""))); });
  inquiry.operations.resize(engine::Inquiry::kMost + 1);
  refuses("a question of too much", [&] { engine::decode(engine::encode(inquiry)); });
  refuses("an answer of what cannot have been asked",
          [&] { engine::decode(engine::encode(engine::StallReply{.number = 1, .lacks = {64}})); });
  refuses("an answer without an end", [&] {
    engine::decode(engine::encode(engine::StallReply{.text = std::string(5000, 'x')}));
  });
  const auto several = engine::decode(engine::encode(engine::StallReply{.text = "a\nb"}));
  expect(std::get<engine::StallReply>(several).text == "a b", "an answer is more than one line");
}

void framing() {
  Bytes message;
  const auto frame = [](std::uint64_t length, std::size_t bytes) {
    Bytes made(sizeof(length) + bytes);
    std::memcpy(made.data(), &length, sizeof(length));
    return made;
  };
  refuses("a message of exabytes",
          [&] { transport::FrameAssembler().take(frame(std::uint64_t{1} << 60, 4), &message); });
  refuses("a message of nothing", [&] { transport::FrameAssembler().take(frame(0, 0), &message); });
  refuses("a frame of three bytes", [&] { transport::FrameAssembler().take(Bytes(3), &message); });
  refuses("a frame beyond its message",
          [&] { transport::FrameAssembler().take(frame(3, 4), &message); });
  transport::FrameAssembler two;
  expect(!two.take(frame(6, 4), &message) && two.take(Bytes(2), &message) && message.size() == 6,
         "a message of two frames is not put together");
}

void addresses() {
  using Address = transport::SharedMemory::Address;
  const auto opening = [](const std::string& path, std::uint64_t exists = 1) {
    return [=] {
      Address address;
      address.exists = exists;
      std::memcpy(address.path, path.data(), std::min(path.size(), sizeof(address.path)));
      transport::SharedMemory::open(address, 4096);
    };
  };
  for (const char* path : {"/etc/passwd", "", "/dev/shm/other", "/dev/shm/hvdlite-a/../../../etc/x",
                           "/proc/1/mem", "/proc/1/fd/", "/proc/self/fd/0", "/proc/1/fd/1/x"}) {
    refuses("the address of something else", opening(path));
  }
  refuses("an address without an end", opening(std::string(128, '/')));
  refuses("an address of nothing", opening("/dev/shm/hvdlite-x", 0));
  refuses("an address that half exists", opening("/dev/shm/hvdlite-x", 0x0200));
}

// --- what a coordinator may not be told ------------------------------------------------------------------------------------

void announcing_what_cannot_be() {
  const auto changed = [](OpKind kind, const std::function<void(Request&)>& change) {
    Request request = request_of(kind, "x", 4);
    change(request);
    return announcing(request);
  };
  coordinator_fails_on("an allgather without rows",
                       changed(OpKind::kAllgather, [](Request& r) { r.shape.clear(); }));
  coordinator_fails_on("splits of three ranks among two",
                       changed(OpKind::kAlltoall, [](Request& r) { r.splits = {1, 1, 2}; }));
  coordinator_fails_on("splits beyond the rows",
                       changed(OpKind::kAlltoall, [](Request& r) { r.splits = {1, 1 << 30}; }));
  coordinator_fails_on("a set with rank 1000",
                       changed(OpKind::kAddProcessSet, [](Request& r) { r.splits = {0, 1000}; }));
  coordinator_fails_on("the end of the set of all ranks",
                       changed(OpKind::kRemoveProcessSet, [](Request& r) { r.root = 0; }));
  coordinator_fails_on("a send, which two ranks alone do",
                       changed(OpKind::kSend, [](Request& r) { r.root = 0; }));
  coordinator_fails_on("a root outside",
                       changed(OpKind::kBroadcast, [](Request& r) { r.root = 7; }));
  coordinator_fails_on("a sum of nothing summable", changed(OpKind::kAllreduce, [](Request& r) {
                         r.dtype = base::DType::kBool;
                         r.op = base::ReduceOp::kAverage;
                       }));
  Announcement wild;
  wild.set = kWorld;
  wild.slots = {4000};
  coordinator_fails_on("a slot that was never filled", wild);
  coordinator_fails_on("a verdict of rank 1", engine::Verdict{kWorld, {"x"}, "no"});
  coordinator_fails_on("a verdict of rank 1 on a send", engine::Verdict{kWorld, {"x"}, "no", true});
  coordinator_fails_on("a payload that was not asked for", engine::Coming{1});
}

void making_steps_that_no_member_makes() {
  using Kind = LedgerSteps::Kind;
  const auto steps = [](std::uint64_t stamp, std::vector<LedgerSteps::Step> made) {
    return LedgerSteps{.set = kWorld, .stamp = stamp, .steps = std::move(made)};
  };
  coordinator_fails_on("a list of rank 1", steps(1, {{.kind = Kind::kList, .key = 1}}));
  coordinator_fails_on("a reopening of rank 1", steps(1, {{.kind = Kind::kReopen}}));
  coordinator_fails_on("a diverted key of rank 1",
                       steps(1, {{.kind = Kind::kDivert, .keys = {7}}}));
  Request small = request_of(OpKind::kAllreduce, "x", 4);
  small.seal();
  const LedgerSteps::Step x = {
      .prepared = true, .key = small.name_hash, .content = small.content_hash};
  const LedgerSteps::Step other = {.key = 7};
  for (const std::vector<LedgerSteps>& messages :
       {std::vector{steps(2, {x}), steps(2, {})}, {steps(1, {other, other})}, {steps(1, {x})}}) {
    Pair pair(false);  // the last message has no payload, though it says that the unit is prepared
    pair.rank(0).submit(small);
    pair.rank(0).pass();
    for (const LedgerSteps& message : messages) pair.deliver(1, 0, message);
    pair.rank(0).pass();
    expect(pair.rank(0).failed() && pair.rank(0).done(),
           "steps out of order, twice, or without payload");
  }
}

// --- what a member may not be told ------------------------------------------------------------------------------------------

void deciding_what_was_not_asked() {
  const Request mine = request_of(OpKind::kAllreduce, "x", 1000);
  fails_on("a larger tensor", mine, deciding(request_of(OpKind::kAllreduce, "x", 5000)));
  Request wide = mine;
  wide.dtype = base::DType::kFloat64;
  fails_on("a wider dtype", mine, deciding(wide));
  Request elsewhere = mine;
  elsewhere.arena = 1;
  fails_on("an arena that is not there", mine, deciding(elsewhere));
  fails_on("an operation that nobody asked for", {}, deciding(mine));
  fails_on("a slot of gigabytes", mine,
           deciding(mine, [](Response& response) { response.slot = 0x7fff'fff0; }));
  ResponseList hit = deciding(mine, [](Response& response) { response.slot = 3; });
  hit.decisions[0].hit = true;
  fails_on("a slot that is empty", mine, hit);
  const Request gather = request_of(OpKind::kAllgather, "x", 10);
  fails_on("rows that are not there", gather,
           deciding(gather, [](Response& response) { response.sizes = {10, 4000}; }));
  fails_on("too few members", gather,
           deciding(gather, [](Response& response) { response.sizes = {10}; }));
  fails_on("rows without number", gather, deciding(gather, [](Response& response) {
             response.sizes = {std::int64_t{1} << 62, 10};
           }));
}

// The second time the rank has nothing to give.
void deciding_twice() {
  for (const OpKind kind : {OpKind::kAllgather, OpKind::kAllreduce}) {
    const Request mine = request_of(kind, "x", 10);
    ResponseList list = deciding(mine, [&](Response& response) {
      if (kind == OpKind::kAllgather) response.sizes = {10, 10};
    });
    list.decisions.push_back(list.decisions.front());
    fails_on("an operation that is decided twice", mine, list);
  }
}

// A message that came early for a set and cannot be carried out: what made the set has ended all the same.
void early() {
  Pair pair(false);
  Request on_new = request_of(OpKind::kAllgather, "x", 4);
  on_new.set = {1, 2};
  on_new.shape.clear();
  pair.deliver(1, 0, announcing(on_new));
  for (int number = 0; number < 2; ++number) {
    Request add = request_of(OpKind::kAddProcessSet, "add", 0);
    add.splits = {0};
    pair.rank(number).submit(add);
  }
  pair.pass();
  expect(pair.rank(0).failed() && pair.rank(0).done(), "an early message was followed");
}

// --- memory that several processes write ------------------------------------------------------------------------------------

void damaged_ledger() {
  const std::size_t bytes = engine::Ledger::bytes({});
  // The places of ledger.cc: three lines, then the tail, then the members' positions, then the log, then the table.
  constexpr std::size_t kTail = 128, kLog = 192 + 64 * 64;
  const std::size_t table = bytes - std::size_t{32768} * 32;
  const auto put = [](std::byte* at, std::uint64_t value) {
    std::memcpy(at, &value, sizeof(value));
  };
  survives("a log longer than it can be",
           [&](std::byte* ledger) { put(ledger + kTail, std::uint64_t{1} << 60); });
  survives("an entry of no kind", [&](std::byte* ledger) {
    put(ledger + kLog + 8, 0x0001'0000'0000'0009);
    put(ledger + kTail, 1);
  });
  survives("completions without a last one", [&](std::byte* ledger) {
    for (std::size_t cell = table; cell < bytes; cell += 32) {
      if (std::uint64_t key; std::memcpy(&key, ledger + cell, 8), key != 0) put(ledger + kLog, key);
    }
    put(ledger + kLog + 8, 0x0000'0000'0002'0000);
    put(ledger + kTail, 1);
  });
  survives("a full table", [&](std::byte* ledger) {
    for (std::size_t cell = table; cell < bytes; cell += 32) put(ledger + cell, 0x1111);
  });
  // An entry says that payloads of 64 bytes lie there, of a tensor of 4000.
  survives("a riding payload that is none", [&](std::byte* ledger) {
    for (std::size_t cell = table; cell < bytes; cell += 32) {
      if (std::uint64_t key; std::memcpy(&key, ledger + cell, 8), key != 0) put(ledger + kLog, key);
    }
    put(ledger + kLog + 8, 0x0001'0001'0002'0000);
    put(ledger + kTail, 1);
  });
}

}  // namespace

int run_cases() {
  constexpr void (*kCases[])() = {
      decoding,
      framing,
      addresses,
      announcing_what_cannot_be,
      making_steps_that_no_member_makes,
      deciding_what_was_not_asked,
      deciding_twice,
      early,
      damaged_ledger,
  };
  for (const auto& run : kCases) run();
  return static_cast<int>(std::size(kCases));
}

}  // namespace hvdlite::fuzz
