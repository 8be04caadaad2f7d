// An Agreement in plain objects, with the protocol of ledger.h but neither lock nor shared memory: members of one process. A test
// can refuse a member's steps, and have one die in the middle of a step.
// Thread: one. Owns: a share of what the members of one set share. Blocks: no. Throws: native_test::Failure on misuse.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/negotiation/agreement.h"
#include "harness.h"

namespace hvdlite::engine::negotiation_test {

// What the members share.
struct PlainTable {
  struct Cell {
    std::uint64_t content = 0;
    std::set<int> announced;  // by index
    int contributors = 0, prepared = 0;
    bool diverted = false;
  };
  int members = 0;
  bool exists = false, open = false;
  bool held = false;  // for ever, by a member that died
  std::uint64_t first_sequence = 0;
  std::map<std::uint64_t, Cell> cells;
  std::vector<Agreement::LogEntry> log;
  std::map<int, std::size_t> read;  // entries of the log, by each member

  void add_to(base::Hasher& hasher) const {
    hasher.add_pair((exists ? 2 : 0) + (open ? 1 : 0), held ? 1 : 0);
    hasher.add(first_sequence);
    for (const auto& [key, cell] : cells) {
      hasher.add(key);
      hasher.add(cell.content);
      hasher.add_pair(cell.contributors, 2 * cell.prepared + (cell.diverted ? 1 : 0));
      for (const int member : cell.announced) hasher.add_signed(member);
    }
    hasher.add(log.size());
    for (const Agreement::LogEntry& entry : log) {
      hasher.add(entry.key);
      hasher.add_pair(static_cast<int>(entry.kind),
                      16 * entry.by + 2 * entry.last + entry.prepared);
    }
    for (const auto& [member, entries] : read) hasher.add(entries);
  }
};

// Of one region of a window: how many have left it (Regions::Region::departures).
using Departures = std::shared_ptr<std::uint64_t>;

// What a test does to one member's steps.
struct Trouble {
  static constexpr int kAll = -1;
  int allow = kAll;           // so many more, and refuse all others
  bool dies_in_step = false;  // the next one
};

class PlainAgreement final : public Agreement {
 public:
  PlainAgreement(std::shared_ptr<PlainTable> table, int index, Departures departures,
                 std::uint64_t awaited, Trouble& trouble)
      : table_(std::move(table)),
        index_(index),
        departures_(std::move(departures)),
        awaited_(awaited),
        trouble_(trouble) {}
  ~PlainAgreement() override { ++*departures_; }

  bool is_in_memory() const override { return true; }
  void hear(int, LedgerSteps) override { EXPECT(false); }
  bool may_begin() override { return *departures_ >= awaited_; }
  void begin(std::uint64_t sequence, std::span<const std::uint64_t> keys) override {
    table_->exists = table_->open = true;
    table_->first_sequence = sequence;
    divert_all(keys);
  }
  bool exists() const override { return table_->exists; }
  std::uint64_t first_sequence() const override { return table_->first_sequence; }

  bool has_news() const override { return read() < table_->log.size(); }
  LogEntry front() const override { return table_->log.at(read()); }
  void pop() override { ++table_->read[index_]; }

  Step try_announce(std::span<Unit> units) override {
    return step(/*up_to_date=*/true, [&] {
      for (Unit& unit : units) unit.by_message = !announce(unit);
    });
  }
  Step try_close() override {
    return step(/*up_to_date=*/true, [&] { close(); });
  }
  Step try_abandon() override {
    return step(/*up_to_date=*/false, [&] { close(); });
  }
  bool is_open() const override { return table_->open; }
  Step try_list(std::uint64_t number, std::span<const std::uint64_t> decided) override {
    return step(/*up_to_date=*/false, [&] {
      for (const std::uint64_t key : decided) table_->cells.erase(key);
      append({.key = number, .kind = Kind::kList});
    });
  }
  Step try_keep(Upkeep& upkeep) override {
    return step(/*up_to_date=*/false, [&] {
      if (std::exchange(upkeep.close, false)) {
        close();
        upkeep.divert.clear();
      }
      for (const std::uint64_t key : std::exchange(upkeep.divert, {})) divert(key);
      if (!std::exchange(upkeep.reopen, false)) return;
      table_->open = true;
      divert_all(upkeep.counted);
    });
  }

 private:
  std::size_t read() const { return table_->read[index_]; }

  template <typename Change>
  Step step(bool up_to_date, Change change) {
    if (table_->held || trouble_.allow == 0) return Step::kRefused;
    if (trouble_.allow > 0) --trouble_.allow;
    if (up_to_date && has_news()) return Step::kUnread;
    if (trouble_.dies_in_step) {
      table_->held = true;
      return Step::kRefused;
    }
    const std::size_t before = table_->log.size();
    change();
    if (table_->log.size() == before) return Step::kDone;
    table_->log.back().last = 1;
    return Step::kAppended;
  }

  // False: by message.
  bool announce(const Unit& unit) {
    if (!table_->open) return false;
    const auto [found, is_new] = table_->cells.try_emplace(unit.key);
    PlainTable::Cell& cell = found->second;
    if (is_new) cell.content = unit.content;
    if (cell.diverted) return false;
    if (cell.content != unit.content) {
      divert(unit.key);
      return false;
    }
    EXPECT(cell.announced.insert(index_).second);
    if (!unit.absent) ++cell.contributors;
    if (unit.prepared) ++cell.prepared;
    if (cell.announced.size() < static_cast<std::size_t>(table_->members)) return true;
    append({.key = unit.key,
            .kind = Kind::kComplete,
            .contributors = static_cast<std::uint16_t>(cell.contributors),
            .prepared = static_cast<std::uint16_t>(cell.prepared == table_->members ? 1 : 0)});
    table_->cells.erase(unit.key);
    return true;
  }
  void divert(std::uint64_t key) {
    if (!table_->open) return;
    const auto [cell, is_new] = table_->cells.try_emplace(key);
    if (!is_new && !cell->second.diverted) append({.key = key, .kind = Kind::kDiverted});
    cell->second.diverted = true;
  }
  void divert_all(std::span<const std::uint64_t> keys) {
    for (const std::uint64_t key : keys) table_->cells[key].diverted = true;
  }
  void close() {
    if (!std::exchange(table_->open, false)) return;
    table_->cells.clear();
    append({.kind = Kind::kClosed});
  }
  void append(LogEntry entry) {
    entry.by = static_cast<std::uint8_t>(index_);
    table_->log.push_back(entry);
  }

  std::shared_ptr<PlainTable> table_;
  int index_;
  Departures departures_;
  std::uint64_t awaited_;
  Trouble& trouble_;
};

}  // namespace hvdlite::engine::negotiation_test
