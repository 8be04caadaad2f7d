// Notices operations that do not complete, finds out which ranks they wait for and what those ranks do, and in the end makes
// all ranks give up. A pure state machine: open operations, answers and the time go in; questions, log lines and a verdict (the
// cause for which this rank fails) come out.
// Thread: one at a time. Owns: what it knows of stalls, and its current question. Blocks: no.
// Throws: std::bad_alloc, and what StateOf throws.
//
// deadlock.h usually finds a deadlock in a second or two. This machine is for a rank that computes, hangs or is stopped while
// others wait, and for an operation whose data do not move. A rank that has waited for too long asks the other ranks what they
// lack:
//
//   an operation is too old --> Inquiry to the ranks that it needs --> StallReply or silence --> one line: who is missing
//
// A rank may be asked about an operation for which it waits itself. Then claim() decides whether the asking or the asked rank
// looks after the stall, that is, asks the other ranks about it and writes the log line. A rank with a higher number begins to
// ask a little later, by up to 3 seconds. So if several ranks have waited equally long, usually only one asks.
#pragma once

#include <deque>
#include <functional>
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

// An operation of this rank whose age is at least half of the lower of the two limits (StallInspector::Limits).
struct Stalled {
  std::uint64_t record = 0;          // its number in the flight recorder
  const Request* request = nullptr;  // valid during look()
  bool under_way = false;            // it is agreed, or (a send or receive) matched
  double age = 0;                    // seconds
};

class StallInspector {
 public:
  using Time = base::Clock::time_point;

  // Seconds; 0: never.
  struct Limits {
    double warn = 0;
    double give_up = 0;
    double least() const;  // the lower of the limits that are not 0; 0: both are 0
  };
  StallInspector(Limits limits, int rank) : limits_(limits), rank_(rank) {}

  // Is it time for note() and look()?
  bool due(Time now) const;
  // Does this rank wait for answers to its question?
  bool asking() const { return inquiry_.has_value(); }
  // Call it before each look, and before the calls of age() and still_for() for this look. newest: the number of the operation
  // submitted last. activity: see Membership::Facts.
  void note(Time now, std::uint64_t newest, std::uint64_t activity);
  // Seconds since the operation of this number was submitted. The result may be too small: by the time between two looks at
  // most, or by more if the operation is older than both limits.
  double age(std::uint64_t record, Time now) const;
  // Seconds since the last look that noticed a movement of data. Looks notice none while a question is open.
  double still_for(Time now) const { return base::seconds_between(moved_at_, now); }
  double least_age() const { return limits_.least(); }

  struct Actions {
    std::vector<int> ask;  // the ranks that get `inquiry`
    Inquiry inquiry;
    std::vector<std::string> warnings;
    std::vector<std::string> news;  // about stalls that are over
    std::string verdict;            // not empty: this rank fails for this cause
  };
  // Describes what this rank can see of a rank that does not answer; returns "" if it sees nothing.
  using StateOf = std::function<std::string(int)>;
  Actions look(Time now, std::span<const Stalled> stalled, const Roster& roster,
               const StateOf& state_of);
  // Drops an answer to an earlier question, and an answer of a rank that was not asked.
  void hear(int rank, StallReply answer);
  // `rank` asks about an operation in this set for which this rank waits, too. last: as in that rank's Inquiry. Returns true if
  // this rank looks after the stall. This is so in two cases:
  // - This rank has the lower number, and its own open question has the same `last` and names an operation in this set.
  // - `last` is false, this rank has written a line about a stall (of any set) that is not over, and no other rank looks after
  //   this set.
  // Otherwise returns false, and this rank asks nothing about the set for some time (kGrace).
  bool claim(int rank, SetId set, bool last, Time now);

 private:
  // An operation that a question of this rank names.
  struct PendingOperation {
    std::uint64_t record = 0;
    SetId set;
    std::string text;
    bool under_way = false;
    std::vector<int> others;  // the ranks that have to ask for it
  };
  struct Question {
    std::uint64_t number = 0;
    bool last = false;  // is this the question before giving up?
    Time since;
    // The number of operations that are old enough for this question (begin() in stall.cc). The question names at most
    // Inquiry::kMost of them.
    std::size_t all = 0;
    std::vector<PendingOperation> operations;
    std::map<int, std::optional<StallReply>> answers;  // by rank; nothing: no answer yet
    bool moving = false;  // had data moved within half of the limit before the question?
    // The number of operations that are old enough, but are not in the question.
    std::size_t unasked() const { return all - operations.size(); }
  };
  // Why operations do not end: which ranks are missing; if none is, whether the operations are under way.
  struct Reason {
    std::vector<int> missing;
    bool under_way = false;
    bool operator==(const Reason&) const = default;
  };
  // Stalled operations with the same reason.
  struct StalledOperations {
    Reason reason;
    std::vector<const PendingOperation*> operations;  // in the order of submission
    double age = 0;                                   // of the oldest
    // The number of operations that are old enough but not in the question (Question::unasked). 0 if the operations in the
    // question have different reasons.
    std::size_t more = 0;
  };
  // A stall that this rank has written to the log.
  struct Episode {
    Reason reason;
    std::set<std::uint64_t> records;
    std::string text;  // names its operations
    Time since;        // the submission of its oldest operation
  };

  // Removes the stalls that have ended, and writes a log line for each of them. A stall has ended when none of its operations
  // is stalled any more.
  void end_episodes(Time now, std::span<const Stalled> stalled, Actions& actions);
  // What a text about ranks needs: their names, and what this rank can see of them.
  struct Names {
    const Roster& roster;
    const StateOf& state_of;
  };
  // Asks a question, if it is time for one and an operation is too old. Returns true if it has asked.
  bool begin(Time now, std::span<const Stalled> stalled, bool last, const Roster& roster,
             Actions& actions);
  // Ends the question, and writes lines or the verdict.
  void conclude(Time now, std::span<const Stalled> stalled, const Names& names, Actions& actions);
  std::vector<StalledOperations> group(Time now, const Question& question,
                                       std::span<const Stalled> stalled);
  // Does another rank look after the stalls of this set?
  bool in_hand(SetId set, bool last, Time now) const;
  // Does one of episodes_ contain this operation?
  bool is_told(std::uint64_t record) const;
  // Does the question's operation at this index wait for the rank?
  bool is_missing(const Question& question, std::size_t index, int rank) const;
  double limit(bool last) const { return last ? limits_.give_up : limits_.warn; }
  // For how long a question waits for answers, in seconds.
  double patience() const;
  static std::string tell(const StalledOperations& group, const Question& question,
                          const Names& names);
  static std::string where_is(int rank, bool many, const Question& question, const Names& names);
  static std::string list(const StalledOperations& group);

  Limits limits_;
  int rank_;
  std::optional<Time> looked_at_;
  // For each look at which the number of the newest operation had changed: the time of the look, and that number.
  std::deque<std::pair<Time, std::uint64_t>> submitted_;
  std::uint64_t activity_ = 0;
  Time moved_at_;
  std::uint64_t numbers_ = 0;  // the number of the last question
  std::optional<Question> inquiry_;
  Time next_[2];  // the earliest time of the next question, by `last`
  std::vector<Episode> episodes_;
  // Until when another rank looks after a set, by set and `last`.
  std::map<std::pair<SetId, bool>, Time> in_hand_;
  // Operations for which an earlier question found no missing rank. They get a line only if a later question, too, finds no
  // missing rank.
  std::set<std::uint64_t> unexplained_;
};

}  // namespace hvdlite::engine
