// Walks through every interleaving of small jobs over a ledger. Over 400 lines, because the model and its rules belong together.
#include "testing/explore.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/cache_line.h"
#include "base/error.h"
#include "c_api/c_api.h"
#include "engine/negotiation/ledger.h"

namespace hvdlite::testing {

using engine::Ledger;
using engine::require;

namespace {

constexpr int kKeys = 4;
constexpr int kMost = 3;      // members
constexpr int kHistory = 12;  // things done, lists, messages of one member
constexpr Ledger::Capacity kCapacity = {16, 16};

enum Ask : std::uint8_t { kNotAsked, kInLedger, kInMessage };

// Plain bytes throughout, so that states can be copied and compared. A key's number k stands for itself plus one in the
// ledger; done and decided hold 2k, or 2k + 1 for a failure, or kJoinOver.
constexpr std::uint8_t kJoinOver = 2 * kKeys;
constexpr std::uint8_t kNoPayload = 255;
constexpr std::uint8_t kJoin = 100,
                       kLeave = 101;  // messages; others are k, or k + kKeys with the other content

struct MemberState {
  std::uint8_t next = 0;  // in its program
  std::uint8_t asked[kKeys] = {};
  std::uint8_t joined = 0, left = 0;
  std::uint8_t lists = 0;  // delivered
  std::uint8_t done[kHistory] = {}, done_count = 0;
  std::uint8_t sent[kHistory] = {}, sent_count = 0,
               received_count = 0;                   // messages to the coordinator
  std::uint8_t read = 0;                             // entries of the log
  std::uint8_t payloads = 0, payload[kKeys] = {};    // read; under which number the own one was put
  std::uint8_t place[2] = {kNoPayload, kNoPayload};  // numbers of what lies in its two places
  std::uint8_t agreed = 0;                           // things done because the log said so
};

struct CoordinatorState {
  std::uint8_t same[kKeys] = {}, other[kKeys] = {};  // who asked, by content
  std::uint8_t joined = 0, left = 0;
  std::uint8_t to_divert[kKeys] = {};
  std::uint8_t closings = 0, close = 0;
  std::uint8_t decided[kHistory] = {}, decided_count = 0;
  std::uint8_t listed[kHistory] = {};  // how many decisions lists 1..n contain together
  std::uint8_t list_count = 0, log[kHistory] = {}, log_count = 0;
};

struct State {
  MemberState members[kMost];
  CoordinatorState coordinator;
};

class Explorer {
 public:
  // broken_rule: 2, 3, 4 or 5 breaks that rule of ledger.h, to see that it is needed.
  Explorer(std::vector<std::string> programs, int closings, int broken_rule)
      : programs_(std::move(programs)),
        broken_rule_(broken_rule),
        size_(static_cast<int>(programs_.size())),
        everyone_(static_cast<std::uint8_t>((1 << size_) - 1)),
        memory_(Ledger::bytes(kCapacity) / sizeof(Line) + 1) {
    for (int m = 0; m < size_; ++m) {
      ledgers_.emplace_back(bytes(), kCapacity, size_, m, 1, nullptr);
    }
    ledgers_[0].begin(0, {});
    state_.coordinator.closings = static_cast<std::uint8_t>(closings);
  }

  std::int64_t run() {
    std::vector<Snapshot> open = {save()};
    seen_.insert(fingerprint());
    while (!open.empty()) {
      const Snapshot from = std::move(open.back());
      open.pop_back();
      bool any = false;
      for (int step = 0; step < kSteps * size_; ++step) {
        restore(from);
        if (!take(step % kSteps, step / kSteps)) continue;
        any = true;
        check_order();
        if (seen_.insert(fingerprint()).second) open.push_back(save());
      }
      restore(from);
      if (!any) check_end();
    }
    return static_cast<std::int64_t>(seen_.size());
  }

 private:
  struct alignas(base::kCacheLine) Line {
    std::byte bytes[base::kCacheLine];
  };
  struct Snapshot {
    State state;
    std::vector<Ledger> ledgers;
    std::vector<Line> memory;
  };

  std::byte* bytes() { return memory_.front().bytes; }
  Snapshot save() const { return {state_, ledgers_, memory_}; }
  void restore(const Snapshot& from) {
    state_ = from.state;
    ledgers_ = from.ledgers;
    std::copy(from.memory.begin(), from.memory.end(), memory_.begin());
  }
  // 64 bits for some 100 000 states: two of them look alike once in a billion runs.
  std::size_t fingerprint() const {
    std::string text(reinterpret_cast<const char*>(&state_), sizeof(state_));
    text.append(reinterpret_cast<const char*>(memory_.front().bytes),
                memory_.size() * sizeof(Line));
    return std::hash<std::string>{}(text);
  }

  // --- steps: false if it cannot be taken now ---
  static constexpr int kSteps = 8;
  bool take(int step, int m) {
    switch (step) {
      case 0:
        return read(m);
      case 1:
        return ask(m);
      case 2:
        return deliver_to_coordinator(m);
      case 3:
        return deliver_list(m);
      case 4:
        return m == 0 && append_list();
      case 5:
        return m == 0 && divert();
      case 6:
        return m == 0 && close();
      default:
        return m == 0 && reopen();
    }
  }

  bool read(int m) {
    MemberState& member = state_.members[m];
    Ledger& ledger = ledgers_[static_cast<std::size_t>(m)];
    if (member.left != 0 || !ledger.has_news()) return false;
    const Ledger::LogEntry entry = ledger.front();
    const auto key = static_cast<int>(entry.key) - 1;
    switch (entry.kind) {
      case Ledger::Kind::kComplete:
        HVD_CHECK(member.asked[key] == kInLedger);
        ++member.agreed;
        if (entry.prepared != 0) read_payloads(member, member.payload[key]);
        did(member, 2 * key);
        member.asked[key] = kNotAsked;
        break;
      case Ledger::Kind::kDiverted:
        if (member.asked[key] == kInLedger) send(member, key);
        break;
      case Ledger::Kind::kClosed:
        for (int k = 0; k < kKeys; ++k) {
          if (member.asked[k] == kInLedger) send(member, k);
        }
        break;
      case Ledger::Kind::kList:
        if (member.lists < entry.key) return false;
        follow(member, static_cast<int>(entry.key));
        break;
    }
    ledger.pop();
    member.read = static_cast<std::uint8_t>(member.read + 1);
    return true;
  }

  // As Execution::execute_prepared: all members' payloads lie under the number that comes next here.
  void read_payloads(MemberState& member, std::uint8_t own) {
    const std::uint8_t number = member.payloads++;
    for (int m = 0; m < size_; ++m) {
      if (own != number || state_.members[m].place[number & 1] != number) {
        fail("a payload is not where it is looked for");
      }
    }
  }

  void follow(MemberState& member, int list) {
    const CoordinatorState& c = state_.coordinator;
    for (int i = c.listed[list - 1]; i < c.listed[list]; ++i) {
      const int what = c.log[i];
      did(member, what);
      if (what == kJoinOver) {
        member.joined = 0;
      } else {
        member.asked[what / 2] = kNotAsked;
      }
    }
  }

  static void did(MemberState& member, int what) {
    HVD_CHECK(member.done_count < kHistory);
    member.done[member.done_count++] = static_cast<std::uint8_t>(what);
  }

  // The content with which a member asks for a key at its place in the program.
  char program_at(int m) const {
    const std::string& program = programs_[static_cast<std::size_t>(m)];
    return state_.members[m].next < program.size() ? program[state_.members[m].next] : '\0';
  }
  static bool is_other(char letter) { return letter >= 'A' && letter <= 'Z'; }
  static int key_of(char letter) { return is_other(letter) ? letter - 'A' : letter - 'a'; }

  bool ask(int m) {
    MemberState& member = state_.members[m];
    Ledger& ledger = ledgers_[static_cast<std::size_t>(m)];
    const char letter = program_at(m);
    if (letter == '\0' || member.joined != 0 || member.left != 0) return false;
    // As SetNegotiation::announce_join: what it has in the ledger goes by message before its join.
    if (letter == '+' && in_ledger(member) > 0) return close_up_to_date(m);
    if (letter == '+' || letter == '.') {
      if (letter == '.' && !leave(m)) return false;
      ++member.next;
      if (letter == '+') member.joined = 1;
      enqueue(member, letter == '+' ? kJoin : kLeave);
      return true;
    }
    const int key = key_of(letter);
    if (member.asked[key] != kNotAsked) return false;
    if (!ledger.try_lock(0)) return false;
    if ((!ledger.up_to_date() && broken_rule_ != 2) || !ledger.has_room(1)) {
      ledger.unlock();
      return false;
    }
    // As SetNegotiation::prepare_waiting: a member prepares what it announces if it has nothing else in the ledger.
    const bool prepares = in_ledger(member) == 0;
    if (prepares) member.place[member.payloads & 1] = member.payloads;
    const bool announced = ledger.announce(static_cast<std::uint64_t>(key) + 1,
                                           is_other(letter) ? 2 : 1, false, prepares);
    ledger.unlock();
    ++member.next;
    member.asked[key] = kInLedger;
    member.payload[key] = prepares ? member.payloads : kNoPayload;
    if (!announced) send(member, key);
    return true;
  }

  static std::ptrdiff_t in_ledger(const MemberState& member) {
    return std::count(std::begin(member.asked), std::end(member.asked), kInLedger);
  }

  bool leave(int m) {
    if (!close_up_to_date(m)) return false;
    state_.members[m].left = 1;
    return true;
  }

  bool close_up_to_date(int m) {
    Ledger& ledger = ledgers_[static_cast<std::size_t>(m)];
    if (!ledger.try_lock(0)) return false;
    const bool ready = ledger.up_to_date() && ledger.has_room(1);
    if (ready && broken_rule_ != 5) ledger.close();
    ledger.unlock();
    return ready;
  }

  // Which content it asked for: the last one in its program up to here.
  void send(MemberState& member, int key) {
    const std::string& program = programs_[static_cast<std::size_t>(&member - state_.members)];
    for (int i = member.next; i-- > 0;) {
      const char letter = program[static_cast<std::size_t>(i)];
      if (letter == '+' || letter == '.' || key_of(letter) != key) continue;
      enqueue(member, is_other(letter) ? key + kKeys : key);
      break;
    }
    member.asked[key] = kInMessage;
  }
  static void enqueue(MemberState& member, int message) {
    HVD_CHECK(member.sent_count < kHistory);
    member.sent[member.sent_count++] = static_cast<std::uint8_t>(message);
  }

  bool deliver_to_coordinator(int m) {
    MemberState& member = state_.members[m];
    CoordinatorState& c = state_.coordinator;
    if (member.received_count == member.sent_count) return false;
    const int message = member.sent[member.received_count++];
    const auto bit = static_cast<std::uint8_t>(1 << m);
    if (message == kJoin) {
      c.joined |= bit;
      c.close = 1;
      if (c.joined == everyone_) {
        c.joined = 0;
        c.decided[c.decided_count++] = kJoinOver;
      }
    } else if (message == kLeave) {
      c.left = 1;
      c.close = 1;
    } else {
      const int key = message % kKeys;
      (message >= kKeys ? c.other : c.same)[key] |= bit;
      c.to_divert[key] = 1;
    }
    for (int key = 0; key < kKeys; ++key) settle(key);
    return true;
  }

  void settle(int key) {
    CoordinatorState& c = state_.coordinator;
    const auto asked = static_cast<std::uint8_t>(c.same[key] | c.other[key]);
    if (asked == 0 || (((asked | c.joined) != everyone_) && c.left == 0)) return;
    const bool fails = c.left != 0 || (c.same[key] != 0 && c.other[key] != 0);
    HVD_CHECK(c.decided_count < kHistory);
    c.decided[c.decided_count++] = static_cast<std::uint8_t>(2 * key + (fails ? 1 : 0));
    c.same[key] = c.other[key] = 0;
  }

  bool deliver_list(int m) {
    MemberState& member = state_.members[m];
    if (member.lists == state_.coordinator.list_count) return false;
    ++member.lists;
    return true;
  }

  bool append_list() {
    CoordinatorState& c = state_.coordinator;
    if (c.decided_count == 0 || !ledgers_[0].try_lock(0)) return false;
    std::vector<std::uint64_t> keys;
    for (int i = 0; i < c.decided_count; ++i) {
      HVD_CHECK(c.log_count < kHistory);
      c.log[c.log_count++] = c.decided[i];
      if (c.decided[i] == kJoinOver) continue;
      const int key = c.decided[i] / 2;
      keys.push_back(static_cast<std::uint64_t>(key) + 1);
      if (broken_rule_ != 4) c.to_divert[key] = 0;
    }
    c.decided_count = 0;
    c.listed[++c.list_count] = c.log_count;
    ledgers_[0].append_list(c.list_count, keys);
    ledgers_[0].unlock();
    return true;
  }

  std::vector<std::uint64_t> open_keys() const {
    std::vector<std::uint64_t> keys;
    for (int key = 0; key < kKeys; ++key) {
      if ((state_.coordinator.same[key] | state_.coordinator.other[key]) != 0) {
        keys.push_back(static_cast<std::uint64_t>(key) + 1);
      }
    }
    return keys;
  }

  bool divert() {
    for (int key = 0; key < kKeys; ++key) {
      std::uint8_t& wanted = state_.coordinator.to_divert[key];
      if (wanted == 0) continue;
      if (!ledgers_[0].try_lock(0)) return false;
      if (broken_rule_ != 3) ledgers_[0].divert(static_cast<std::uint64_t>(key) + 1);
      ledgers_[0].unlock();
      wanted = 0;
      return true;
    }
    return false;
  }

  // Because somebody joined or left, or because of a verdict, which may come at any time.
  bool close() {
    CoordinatorState& c = state_.coordinator;
    if (c.close == 0 && c.closings == 0) return false;
    if (c.close == 0) --c.closings;
    c.close = 0;
    if (!ledgers_[0].try_lock(0)) return false;
    ledgers_[0].close();
    ledgers_[0].unlock();
    return true;
  }

  bool reopen() {
    const CoordinatorState& c = state_.coordinator;
    if (ledgers_[0].is_open() || c.joined != 0 || c.left != 0 || c.close != 0) return false;
    if (!ledgers_[0].try_lock(0)) return false;
    ledgers_[0].reopen(open_keys());
    ledgers_[0].unlock();
    return true;
  }

  // --- what must hold ---
  void check_order() const {
    for (int a = 0; a < size_; ++a) {
      for (int b = a + 1; b < size_; ++b) {
        const MemberState& one = state_.members[a];
        const MemberState& two = state_.members[b];
        const int common = std::min(one.done_count, two.done_count);
        if (std::memcmp(one.done, two.done, static_cast<std::size_t>(common)) != 0) {
          fail("members " + std::to_string(a) + " and " + std::to_string(b) +
               " do different things");
        }
      }
    }
  }

  void check_end() const {
    const CoordinatorState& c = state_.coordinator;
    for (int m = 0; m < size_; ++m) {
      const MemberState& member = state_.members[m];
      if (member.agreed != state_.members[0].agreed) {
        fail("member " + std::to_string(m) + " did not do all that was agreed");
      }
      if (member.left == 0 && member.done_count != state_.members[longest()].done_count) {
        fail("member " + std::to_string(m) + " does less than others");
      }
    }
    for (int key = 0; key < kKeys; ++key) {
      std::uint8_t asked = c.joined;
      for (int m = 0; m < size_; ++m) {
        const MemberState& member = state_.members[m];
        if (member.asked[key] == kNotAsked || member.left != 0) continue;  // who left has given up
        asked |= static_cast<std::uint8_t>(1 << m);
      }
      const bool somebody = asked != c.joined;
      if (somebody && (asked == everyone_ || c.left != 0)) {
        fail("key " + std::to_string(key) + " was asked for by all and never done");
      }
    }
    if (ledgers_[0].is_open() && ledgers_[0].used() != asked_for()) {
      fail("its table has " + std::to_string(ledgers_[0].used()) + " cells for " +
           std::to_string(asked_for()) + " keys");
    }
  }
  // Keys that somebody has in the ledger, or the coordinator counts.
  std::uint32_t asked_for() const {
    std::uint32_t keys = 0;
    for (int key = 0; key < kKeys; ++key) {
      const auto announced = [&](const MemberState& member) {
        return member.asked[key] == kInLedger;
      };
      const bool counted = (state_.coordinator.same[key] | state_.coordinator.other[key]) != 0;
      keys += counted || std::any_of(state_.members, state_.members + size_, announced) ? 1 : 0;
    }
    return keys;
  }
  int longest() const {
    int best = 0;
    for (int m = 1; m < size_; ++m) {
      if (state_.members[m].done_count > state_.members[best].done_count) best = m;
    }
    return best;
  }

  [[noreturn]] void fail(const std::string& what) const {
    std::string text = "the ledger is wrong: " + what + ";";
    for (int m = 0; m < size_; ++m) {
      const MemberState& member = state_.members[m];
      text += " member " + std::to_string(m) + " did";
      for (int i = 0; i < member.done_count; ++i) text += " " + std::to_string(member.done[i]);
      text += ';';
    }
    throw base::Error(base::ErrorCode::kInternal, text);
  }

  std::vector<std::string> programs_;
  int broken_rule_;
  int size_;
  std::uint8_t everyone_;
  std::vector<Line> memory_;
  std::vector<Ledger> ledgers_;
  State state_;
  std::unordered_set<std::size_t> seen_;
};

}  // namespace

std::int64_t explore_ledger(const std::vector<std::string>& programs, int closings,
                            int broken_rule) {
  require(!programs.empty() && programs.size() <= kMost, "between 1 and 3 members can be explored");
  for (const std::string& program : programs) {
    for (const char letter : program) {
      require(letter == '+' || letter == '.' || (letter >= 'a' && letter < 'a' + kKeys) ||
                  (letter >= 'A' && letter < 'A' + kKeys),
              std::string("a program consists of a-d, A-D, + and ., not '") + letter + "'");
    }
  }
  return Explorer(programs, closings, broken_rule).run();
}

}  // namespace hvdlite::testing
