// A job of Negotiations alone: no engine, no transport, no thread. What they want done goes into books and onto wires.
// Thread: one. Owns: the ranks and what is on its way. Blocks: no. Throws: what Negotiation throws.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/negotiation/negotiation.h"
#include "engine/plain_agreement.h"

namespace hvdlite::engine::negotiation_test {

// Each rank's host.
inline const std::vector<int> kOneHost = {0, 0}, kThree = {0, 0, 0}, kApart = {0, 1},
                              kThreeApart = {0, 1, 2};

// What a rank did, in order: "x", "x+y" for what is fused, "x/1" with one contributor, "x!" as prepared, "-x" if it has joined.
using Did = std::vector<std::string>;

class Job;

class Rank final : public Effects {
 public:
  Rank(Job& job, int number);

  // --- what its callers do ---
  CompletionPtr ask(Request request);
  CompletionPtr ask(const std::string& name, std::int64_t count = 4, SetId set = {0, 1});
  // Asks for what a letter stands for: + for a join, > and < for a set of all ranks that comes and goes, g for an allgather, v
  // and w for a group of two allreduces, any other for an allreduce of that name. other: with other rows, or another shape.
  CompletionPtr ask_for(char letter, bool other);
  CompletionPtr ask_group(const std::string& group, const std::vector<std::string>& names,
                          std::int64_t count = 4);
  CompletionPtr join();
  CompletionPtr add_set(const std::vector<std::int64_t>& members);
  CompletionPtr remove_set(std::int32_t id);
  // False: to be tried again.
  bool leave();

  Negotiation& negotiation() { return *negotiation_; }
  // All ranks of the job.
  std::vector<std::int64_t> all() const;
  int number() const { return number_; }

  Did did;
  std::map<std::string, std::string> failed;  // by name: the text
  std::vector<SetId> sets;                    // that it knows
  Counters counters;
  Trouble trouble;
  bool prepares = false;
  std::vector<std::size_t> parts;  // of what it prepares, as InlinePayload::parts
  bool busy = false;               // what it executes takes until this is over
  bool ended = false;
  int sent = 0, rung = 0;

  // --- Effects ---
  void send(int rank, const Message& message) override;
  void ring(int) override { ++rung; }
  void execute(SetId set, FusedOp fused, std::vector<Entry> entries) override;
  std::optional<InlinePayload> prepare(SetId, std::span<const Entry> unit) override;
  void execute_prepared(SetId set, std::vector<Entry>& unit,
                        std::vector<std::vector<std::byte>> payloads) override;
  void finish(std::span<const Entry> entries, const base::Status& status) override;
  bool idle(SetId) override { return !busy; }
  std::unique_ptr<Agreement> add_set(const ProcessSet& set, const Regions::Grant& regions) override;
  void remove_set(SetId set) override { std::erase(sets, set); }
  void share_staging(SetId, const Regions::Grant&) override {}
  void joined(SetId) override {}
  void reached(std::span<const Entry>, Stage) override {}
  void announced_at_port(std::span<const Entry>) override {}
  void before_announcing() override {}
  void came_last(int rank, std::size_t) override { last = rank; }
  int last = -1;                                 // whose request was the last one needed
  std::vector<std::vector<std::byte>> payloads;  // of the last operation that all had prepared

 private:
  Job& job_;
  int number_;
  // Of all operations: each byte is the rank's number. What is prepared is small.
  std::array<std::byte, 64> input_{};
  std::unique_ptr<Negotiation> negotiation_;
};

class Job {
 public:
  // hosts: what stands for each rank's host; regions of each host's window, 0: no memory is shared.
  // ledger_copies: members of a set that may agree in copies of a ledger.
  explicit Job(std::vector<int> hosts, int regions = 2, int ledger_copies = 0);

  Rank& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::vector<int>& hosts() const { return hosts_; }
  int regions() const { return regions_; }
  int ledger_copies() const { return ledger_copies_; }

  // Wires that carry something, each in its order; the next message of one arrives.
  std::vector<std::pair<int, int>> busy() const;
  void deliver(std::pair<int, int> wire);
  // One rank's pass, without messages.
  void pass(int rank);
  // Passes and messages until nothing moves any more.
  void run();
  // Ends a rank, which sends nothing. Nothing from it arrives any more.
  void die(int rank) { (*this)[rank].ended = true; }
  void verdict(int coordinator, const std::vector<std::string>& names);

  // What members share of a set, and of a region.
  std::shared_ptr<PlainTable> table(SetId set, int members);
  Departures departures(int region);
  std::deque<Message>& wire(int from, int to) { return wires_[{from, to}]; }
  std::uint64_t digest() const;

 private:
  std::vector<int> hosts_;
  int regions_, ledger_copies_;
  std::map<SetId, std::shared_ptr<PlainTable>> tables_;
  std::map<int, Departures> departures_;
  std::map<std::pair<int, int>, std::deque<Message>> wires_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

Request allreduce(const std::string& name, std::int64_t count = 4, SetId set = {0, 1});
Request allgather(const std::string& name, std::int64_t rows);

}  // namespace hvdlite::engine::negotiation_test
