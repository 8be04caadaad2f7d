// A job of Memberships alone: no engine, no transport, no thread. What they want done goes into books and onto wires, facts are
// plain values, and time is a number. It can be copied as a whole.
// Thread: one. Owns: the ranks and what is on its way. Blocks: no. Throws: what Membership throws.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/membership/membership.h"

namespace hvdlite::engine::membership_test {

using Time = Membership::Time;

struct PlainFacts final : Membership::Facts {
  struct Unfinished {
    Request request;
    std::uint64_t record = 0;
    bool under_way = false;
  };

  bool find_lost(int* rank, std::string* how) override {
    if (lost.empty()) return false;
    *rank = *lost.begin();
    *how = "ended without telling the other ranks";
    lost.erase(lost.begin());
    return true;
  }
  std::uint64_t received_from(int rank) override { return received[rank]; }
  std::uint64_t activity() override { return 0; }
  std::uint64_t version() override { return changes; }
  bool all_wait() override { return waits; }
  bool callbacks_wait() override { return false; }
  BlockedReport blocked() override {
    BlockedReport report;
    report.version = changes;
    report.blocked = waits && !unclear;
    for (const Unfinished& each : open) {
      report.open.push_back(
          {each.request.set, each.request.kind, each.request.name, "", 0, true, {}});
    }
    return report;
  }
  std::uint64_t newest() override { return open.size(); }
  void for_each_unfinished(const Visit& visit) override {
    for (const Unfinished& each : open) visit(each.request, each.record, each.under_way);
  }
  bool has_joined(SetId) override { return false; }
  double since_exemption(Time) override { return 1e9; }
  bool ask_program() override { return where.has_value(); }
  std::optional<std::string> take_answer() override { return where; }
  std::string state_of(int) override { return "it is stopped"; }

  std::set<int> lost;  // of this host, not found yet
  std::map<int, std::uint64_t> received;
  std::uint64_t changes = 0;
  bool waits = false;
  bool unclear = false;  // an exact look finds that this rank is not blocked
  std::vector<Unfinished> open;
  std::optional<std::string> where;  // this rank's program is
};

class Job {
 public:
  // hosts: the leader of each rank's host. All ranks are members of set 0.
  explicit Job(const std::vector<int>& hosts, const Membership::Limits& limits = {10, {}, 10}) {
    std::vector<Roster::Rank> ranks;
    std::vector<int> all;
    for (const int host : hosts) {
      all.push_back(static_cast<int>(all.size()));
      ranks.push_back({host, "rank " + std::to_string(all.back())});
    }
    const auto members = std::make_shared<const std::vector<int>>(all);
    for (const int rank : all) {
      ranks_.push_back({Membership(Roster(rank, ranks), limits, time()), {}, {}, {}, {}, {}});
      ranks_.back().membership.add_set({0, 1}, members);
    }
  }

  struct Rank {
    Membership membership;
    PlainFacts facts;
    std::optional<base::Status> failure;  // the first
    std::map<int, std::string> left;      // who has, as this rank was told
    std::set<int> undecided;              // coordinators that decide nothing more with this rank
    std::vector<std::string> log;
    bool dead = false;
    std::vector<Verdict> verdicts = {};
  };
  Rank& operator[](int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }

  void submit(int rank, const std::string& name) {
    Rank& one = (*this)[rank];
    Request request;
    request.set = {0, 1};
    request.name = name;
    one.facts.open.push_back({request, one.facts.open.size() + 1});
    ++one.facts.changes;
  }
  void leave(int rank, std::set<int> undecided = {}) {
    carry_out(rank, (*this)[rank].membership.leave(std::move(undecided)));
  }
  void raise(int rank, const std::string& cause) {
    carry_out(rank, (*this)[rank].membership.raise(cause));
  }
  // Ends a rank, which sends nothing. Its neighbours can see it.
  void die(int rank) {
    (*this)[rank].dead = true;
    const int host = (*this)[rank].membership.roster().host_of(rank);
    for (int other = 0; other < size(); ++other) {
      const Roster& roster = (*this)[other].membership.roster();
      if (other != rank && roster.host_of(other) == host) (*this)[other].facts.lost.insert(rank);
    }
  }

  // Wires that carry something, each in its order.
  std::vector<std::pair<int, int>> busy() const {
    std::vector<std::pair<int, int>> found;
    for (const auto& [wire, messages] : wires_) {
      if (!messages.empty()) found.push_back(wire);
    }
    return found;
  }
  void deliver(std::pair<int, int> wire) {
    const auto [from, to] = wire;
    Message message = std::move(wires_[wire].front());
    wires_[wire].pop_front();
    Rank& rank = (*this)[to];
    if (rank.dead) return;
    ++rank.facts.received[from];
    if (rank.failure) {
      carry_out(to, rank.membership.hear_late(from, message));
    } else {
      hear(to, from, message);
    }
  }
  void look(int rank) {
    Rank& one = (*this)[rank];
    if (!one.dead && !one.failure && one.membership.due(time())) {
      carry_out(rank, one.membership.look(time(), one.facts));
    }
  }
  void look_for_lost(int rank) {
    carry_out(rank, (*this)[rank].membership.look_for_lost((*this)[rank].facts));
  }
  // All look and all messages arrive, again and again, until so many seconds are over.
  void run(double seconds) {
    for (const double end = seconds_ + seconds; seconds_ < end; seconds_ += 0.25) {
      for (int rank = 0; rank < size(); ++rank) {
        if (!stopped.contains(rank)) look(rank);
      }
      bool any = true;
      while (any) {
        any = false;
        for (const auto& wire : busy()) {
          if (stopped.contains(wire.second)) continue;
          deliver(wire);
          any = true;
        }
      }
    }
  }
  std::uint64_t digest() const {
    base::Hasher hasher;
    for (const Rank& rank : ranks_) {
      hasher.add(rank.membership.digest());
      hasher.add_pair(rank.failure ? 1 : 0, rank.dead ? 1 : 0);
      hasher.add(rank.facts.lost.size());
      hasher.add(rank.undecided.size());
    }
    for (const auto& [wire, messages] : wires_) {
      hasher.add_pair(wire.first, wire.second);
      hasher.add(messages.size());
      for (const Message& message : messages) {
        const std::vector<std::byte> bytes = encode(message);
        hasher.add_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      }
    }
    return hasher.value();
  }

  std::set<int> stopped;  // neither look nor hear

 private:
  Time time() const {
    return Time() + std::chrono::milliseconds(1'000'000 + static_cast<long>(seconds_ * 1000));
  }

  void hear(int to, int from, Message& message) {
    std::visit(
        [&](auto& content) {
          using Content = std::decay_t<decltype(content)>;
          Rank& rank = (*this)[to];
          Membership& machine = rank.membership;
          if constexpr (std::is_same_v<Content, Verdict>) {
            rank.verdicts.push_back(content);
          } else if constexpr (requires {
                                 machine.hear(from, std::move(content), time(), rank.facts);
                               }) {
            carry_out(to, machine.hear(from, std::move(content), time(), rank.facts));
          }
        },
        message);
  }

  void carry_out(int rank, Membership::Actions actions) {
    for (Membership::Action& action : actions) {
      std::visit([&](auto& each) { carry_out(rank, each); }, action);
    }
  }
  void carry_out(int rank, Membership::Send& action) {
    if (action.to == rank) {
      hear(rank, rank, action.message);
    } else {
      wires_[{rank, action.to}].push_back(std::move(action.message));
    }
  }
  void carry_out(int rank, Membership::Announce& action) {
    for (const int to : action.ranks) wires_[{rank, to}].push_back(Failure{action.cause});
  }
  void carry_out(int rank, Membership::Warn& action) {
    for (const int to : action.ranks) wires_[{rank, to}].push_back(Failure{action.cause});
  }
  void carry_out(int rank, Membership::Fail& action) {
    std::optional<base::Status>& failure = (*this)[rank].failure;
    if (!failure) failure = action.why;
  }
  void carry_out(int rank, Membership::Left& action) {
    (*this)[rank].left[action.rank] = action.why.message;
  }
  void carry_out(int rank, Membership::Undecided& action) {
    (*this)[rank].undecided.insert(action.coordinator);
  }
  void carry_out(int rank, Membership::Log& action) { (*this)[rank].log.push_back(action.text); }

  double seconds_ = 0;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<Message>> wires_;
};

}  // namespace hvdlite::engine::membership_test
