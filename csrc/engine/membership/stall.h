// Notices operations that do not come on, finds out for which ranks they wait and where those are, and gives up in the end.
// Pure: what is open, answers and the time in; questions, lines and a verdict out.
// Thread: one at a time. Owns: what it knows of stalls, and the question under way. Blocks: no.
// Throws: nothing.
//
// A deadlock is found in a second or two (deadlock.h). This is for a rank that computes, hangs or is stopped while others wait,
// and for an operation under way whose data do not move. A rank that has waited for too long asks the others for what they lack:
//
//   an operation too old --> Inquiry to all it waits for --> StallReply of each, or silence --> who is missing: one line
//
// A rank that is asked of an operation for which it waits itself leaves the stall to the one that asks (claim), so that one rank
// writes the line. Each rank begins a little later than the one before it, and so those that waited equally long ask once.
#pragma once

#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread.h"
#include "engine/membership/roster.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

// An operation of this rank that is older than the lower of the limits.
struct Stalled {
  std::uint64_t record = 0;  // its number in the flight recorder
  const Request* request = nullptr;
  bool under_way = false;  // agreed, so that all members have asked for it
  double age = 0;          // seconds
};

class StallInspector {
 public:
  using Time = base::Clock::time_point;

  // Seconds; 0: never.
  struct Limits {
    double warn = 0;
    double give_up = 0;
    double least() const;
  };
  StallInspector(Limits limits, int rank) : limits_(limits), rank_(rank) {}

  // Is it time to look? Between two looks nothing has to be told.
  bool due(Time now) const;
  // Waits for answers.
  bool asking() const { return inquiry_.has_value(); }
  // Before each look: the number of the operation submitted last, and a count that changes while anything moves.
  void note(Time now, std::uint64_t newest, std::uint64_t activity);
  // Seconds since an operation was submitted, by its number; those younger than the limits may seem younger still.
  double age(std::uint64_t record, Time now) const;
  // Seconds since data moved last; questions and answers are no data.
  double still_for(Time now) const { return base::seconds_between(moved_at_, now); }
  double least_age() const { return limits_.least(); }

  struct Actions {
    std::vector<int> ask;  // these ranks, this
    Inquiry inquiry;
    std::vector<std::string> warnings;
    std::vector<std::string> news;  // of stalls that are over
    std::string verdict;            // not empty: everything is to end, for this cause
  };
  // What is seen from here of a rank that does not answer, or "".
  using StateOf = std::function<std::string(int)>;
  Actions look(Time now, std::span<const Stalled> stalled, const Roster& roster,
               const StateOf& state_of);
  void hear(int rank, StallReply answer);
  // A rank asks of an operation in this set for which this rank waits, too. True if this one looks after it already.
  bool claim(int rank, SetId set, bool last, Time now);

  void add_to(base::Hasher& hasher) const;

 private:
  // One operation that is asked for.
  struct PendingOperation {
    std::uint64_t record = 0;
    SetId set;
    std::string name;
    std::string text;
    bool under_way = false;
    std::vector<int> others;
  };
  struct Question {
    std::uint64_t number = 0;
    bool last = false;  // whether to give up
    Time since;
    std::size_t all = 0;  // operations that are stalled, of which so many at most are asked for
    std::vector<PendingOperation> operations;
    std::map<int, std::optional<StallReply>> answers;
    bool moving = false;
  };
  // Operations that wait for the same ranks.
  struct StalledOperations {
    std::vector<int> missing;
    std::vector<const PendingOperation*> operations;
    double age = 0;
    std::size_t more = 0;
  };
  // A stall that has been told.
  struct Episode {
    std::vector<int> missing;
    std::set<std::uint64_t> records;
    std::string text;
    Time since;
  };

  void end_episodes(Time now, std::span<const Stalled> stalled, Actions& actions);
  // How ranks are called in a text, and what is seen of them.
  struct Names {
    const Roster& roster;
    const StateOf& state_of;
  };
  bool begin(Time now, std::span<const Stalled> stalled, bool last, const Roster& roster,
             Actions& actions);
  void conclude(Time now, std::span<const Stalled> stalled, const Names& names, Actions& actions);
  std::vector<StalledOperations> group(Time now, const Question& question,
                                       std::span<const Stalled> stalled);
  bool in_hand(SetId set, bool last, Time now) const;
  bool is_told(std::uint64_t record) const;
  bool is_missing(const Question& question, std::size_t index, int rank) const;
  double limit(bool last) const { return last ? limits_.give_up : limits_.warn; }
  double patience() const;
  static std::string tell(const StalledOperations& group, const Question& question,
                          const Names& names);
  static std::string where_is(int rank, bool many, const Question& question, const Names& names);
  static std::string list(const StalledOperations& group);
  static void add_to(base::Hasher& hasher, const Question& question);

  Limits limits_;
  int rank_;
  std::optional<Time> looked_at_;
  std::deque<std::pair<Time, std::uint64_t>> submitted_;  // numbers given out up to each time
  std::uint64_t activity_ = 0;
  Time moved_at_;
  std::uint64_t numbers_ = 0;
  std::optional<Question> inquiry_;
  Time next_[2];  // no question of this kind before; by `last`
  std::vector<Episode> episodes_;
  std::map<std::pair<SetId, bool>, Time> in_hand_;  // until when another rank looks after a set
  std::set<std::uint64_t>
      unexplained_;  // nobody was missing: what was asked for was about to come, or never comes
};

}  // namespace hvdlite::engine
