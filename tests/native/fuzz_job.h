// Ranks of a job in one thread, each with its real engine, and somebody between them who may change what they send.
// Thread: one. Owns: their engines and tensors. Blocks: no. Throws: nothing; a wrong outcome ends the process.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/cycle.h"
#include "fuzz_draw.h"
#include "fuzz_messages.h"
#include "kernels/kernels.h"
#include "testing/forwarding.h"

namespace hvdlite::fuzz {

// Somebody between the ranks.
struct Middleman {
  Draw& draw;
  bool changes = true;     // does anything to messages at all
  std::uint32_t rate = 8;  // one message in so many
  bool changed = false;
};

// A rank's endpoint behind that somebody.
class FuzzedTransport final : public transport::ForwardingTransport {
 public:
  FuzzedTransport(std::unique_ptr<Transport> below, Middleman& middleman)
      : ForwardingTransport(std::move(below)), middleman_(middleman) {}

  void send_message(int peer, Bytes message) override;

 private:
  Middleman& middleman_;
  Bytes kept_;  // an earlier message, to come again
};

struct Submitted {
  engine::CompletionPtr completion;
  base::OpKind kind;
  std::string name;
  std::vector<float> input;
  std::unique_ptr<float[]>
      output;  // not a vector: to the byte, so that the sanitizer sees what is written behind it
  std::size_t count = 0;
  std::int32_t peer = 0;  // of a message
};

class Rank {
 public:
  Rank(std::unique_ptr<transport::Transport> transport, const base::Config& config)
      : transport_(std::move(transport)),
        shared_(config, base::Logger(base::LogLevel::kOff, false, transport_->rank(), 0), {},
                std::make_shared<engine::OutputCache>(config.output_cache_bytes)),
        cycle_(*transport_, shared_, selection()) {}
  ~Rank() {
    cycle_.end_all({base::ErrorCode::kAborted, "the run is over"});
    for (const Submitted& operation : submitted_) {
      const std::string text = "an operation never ended: " + operation.name + " of rank " +
                               std::to_string(number()) +
                               ", whose engine says: " + shared_.failure.status().message;
      expect(operation.completion->is_done(), text.c_str());
    }
    cycle_.close();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  int number() const { return transport_->rank(); }
  bool failed() const { return shared_.failure.happened(); }
  bool pass() { return cycle_.pass(true, true); }
  transport::HostWindow* window() { return transport_->window(); }
  transport::Transport& transport() { return *transport_; }
  bool done() const {
    return std::ranges::all_of(
        submitted_, [](const Submitted& operation) { return operation.completion->is_done(); });
  }
  void submit(engine::Request request);
  void check() const;
  engine::SetId set(std::int32_t id) const {
    const auto info = shared_.sets.find(id);
    return info && info->index >= 0 ? info->id : engine::SetId{-1, 0};
  }

 private:
  static collectives::Selection selection() {
    collectives::Selection selection;
    selection.tuning.isa = kernels::best_isa();
    return selection;
  }

  std::unique_ptr<transport::Transport> transport_;
  engine::SharedState shared_;
  engine::Cycle cycle_;
  std::deque<Submitted> submitted_;
};

// Of float32 in set 0, a Sum where it reduces.
engine::Request request_of(base::OpKind kind, const char* name, std::int64_t count);

}  // namespace hvdlite::fuzz
