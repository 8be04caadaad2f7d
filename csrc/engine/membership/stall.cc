// A rank has at most one open question at a time. The life of a question:
//
//    begin()       when an operation has waited too long, and no other rank looks after its set: sends an Inquiry to each rank
//                  that the operations need and that has not left
//    hear()        stores an answer
//    conclude()    when all have answered, or after patience(): group() finds the missing ranks of each operation
//
// Question::last tells two kinds of questions apart. If `last` is false, the question comes before a warning, and gives at most
// one log line for each new reason. If `last` is true, the question comes before giving up, and gives at most one verdict.
//
// An example: the limit for warnings is 60 s, and only the ranks 0 and 1 exist. Rank 0 has waited for operation A for 60 s and
// for operation B for 40 s. Rank 1 has submitted neither, answers, and has had no exemption in this time.
//
//    question 1    names A and B, because both are older than half of the limit. A gets a line. B gets none yet: rank 0 has
//                  waited for B for less than 60 s. The next question comes in 20 s
//    question 2    names A and B. Both have the reason of the episode that began with A: rank 1 is missing. So B joins that
//                  episode without a new line
//    later         A and B have ended: end_episodes() writes that the stall has ended
//
// The tables:
//
//    submitted_     the front is removed when the next element is older than the higher limit plus kLongestStagger
//    episodes_      an episode is removed when none of its operations is stalled any more
//    in_hand_       no element is removed; an element has no effect after its time
//    unexplained_   becomes empty at a look that finds no stalled operation
#include "engine/membership/stall.h"

#include <algorithm>

#include "base/text.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

using base::from_seconds;
using base::seconds_between;

namespace {

// The time between two looks is the lower limit divided by kLooksPerLimit, but at least kShortestPause and at most
// kLongestPause. While a question is open, the time is kShortestPause. All times in these constants are in seconds.
constexpr double kLooksPerLimit = 50;
constexpr double kShortestPause = 0.02, kLongestPause = 1.0;
// Rank r begins to ask r times kStagger later than rank 0, but at most kLongestStagger later.
constexpr double kStagger = 0.05, kLongestStagger = 3.0;
// A rank counts as silent if it has not answered after half the lower limit (at least kShortestPatience, at most
// kLongestPatience).
constexpr double kShortestPatience = 1.0, kLongestPatience = 3.0;
// When another rank looks after a set, this rank asks no question of the same kind about the set for some time: kGrace for
// questions before giving up, and the limit for warnings plus kGrace for questions before a warning. When this rank itself has
// asked a question before giving up, it may ask the next such question after kGrace or less (group()).
constexpr double kGrace = 5.0;
// How many operations and ranks the text about one reason names at most.
constexpr std::size_t kNamed = 3, kRanksNamed = 8;
// A longer text is cut to this many bytes: a verdict to kMostText, the description of an operation to kMostOperation, the
// description of the place where a rank's program is to kMostPlace. A verdict of kMostText bytes, with the words around it,
// fits into the control page (kCauseBytes in transport/control_page.cc).
constexpr std::size_t kMostText = 2800, kMostOperation = 200, kMostPlace = 933;

std::string in_seconds(double seconds) {
  return base::to_text(seconds, seconds < 10 ? 1 : 0) + " s";
}

const Stalled* find(std::span<const Stalled> stalled, std::uint64_t record) {
  const auto found =
      std::ranges::find_if(stalled, [&](const Stalled& each) { return each.record == record; });
  return found != stalled.end() ? &*found : nullptr;
}

std::string more_operations(std::size_t count) {
  return std::to_string(count) + (count == 1 ? " more operation" : " more operations");
}

std::string shortened(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  text.resize(most);
  return text + " ...";
}

}  // namespace

double StallInspector::Limits::least() const {
  if (warn <= 0) return give_up;
  return give_up > 0 ? std::min(warn, give_up) : warn;
}

bool StallInspector::due(Time now) const {
  if (!looked_at_) return true;
  const double pause =
      asking() ? kShortestPause
               : std::clamp(limits_.least() / kLooksPerLimit, kShortestPause, kLongestPause);
  return seconds_between(*looked_at_, now) >= pause;
}

double StallInspector::patience() const {
  return std::clamp(limits_.least() / 2, kShortestPatience, kLongestPatience);
}

void StallInspector::note(Time now, std::uint64_t newest, std::uint64_t activity) {
  looked_at_ = now;
  // Control messages may be activity, too. So activity does not count as moved data while the answers to a question arrive.
  if (activity != activity_ && !asking()) moved_at_ = now;
  activity_ = activity;
  if (submitted_.empty() || newest != submitted_.back().second) {
    submitted_.emplace_back(now, newest);
  }
  const double oldest = std::max(limits_.warn, limits_.give_up) + kLongestStagger;
  while (submitted_.size() > 1 && seconds_between(submitted_[1].first, now) > oldest) {
    submitted_.pop_front();
  }
}

// The operation counts as submitted at the first look that saw this number or a higher one. With the looks (0 s, number 10) and
// (1 s, number 12), operation 11 counts as submitted at 1 s.
double StallInspector::age(std::uint64_t record, Time now) const {
  const auto found =
      std::ranges::lower_bound(submitted_, record, {}, &std::pair<Time, std::uint64_t>::second);
  return found != submitted_.end() ? seconds_between(found->first, now) : 0.0;
}

StallInspector::Actions StallInspector::look(Time now, std::span<const Stalled> stalled,
                                             const Roster& roster, const StateOf& state_of) {
  Actions actions;
  end_episodes(now, stalled, actions);
  // The question before giving up has the first chance, because it cannot be asked while a question before a warning is open.
  if (!inquiry_ && !begin(now, stalled, true, roster, actions)) {
    begin(now, stalled, false, roster, actions);
  }
  if (!inquiry_) return actions;
  const bool answered = std::ranges::all_of(
      inquiry_->answers, [](const auto& answer) { return answer.second.has_value(); });
  if (answered || seconds_between(inquiry_->since, now) >= patience()) {
    conclude(now, stalled, {roster, state_of}, actions);
  }
  return actions;
}

void StallInspector::end_episodes(Time now, std::span<const Stalled> stalled, Actions& actions) {
  std::erase_if(episodes_, [&](const Episode& episode) {
    if (std::ranges::any_of(episode.records,
                            [&](std::uint64_t record) { return find(stalled, record); })) {
      return false;
    }
    actions.news.push_back("ended after " + in_seconds(seconds_between(episode.since, now)) + ": " +
                           episode.text);
    return true;
  });
  if (stalled.empty()) unexplained_.clear();
}

bool StallInspector::in_hand(SetId set, bool last, Time now) const {
  const auto found = in_hand_.find({set, last});
  return found != in_hand_.end() && now < found->second;
}

bool StallInspector::is_told(std::uint64_t record) const {
  return std::ranges::any_of(
      episodes_, [&](const Episode& episode) { return episode.records.contains(record); });
}

bool StallInspector::begin(Time now, std::span<const Stalled> stalled, bool last,
                           const Roster& roster, Actions& actions) {
  if (limit(last) <= 0 || now < next_[last ? 1 : 0]) return false;
  const double late = limit(last) + std::min(kStagger * rank_, kLongestStagger);
  std::vector<const Stalled*> chosen;
  bool any = false;
  for (const Stalled& each : stalled) {
    if (in_hand(each.request->set, last, now)) continue;
    any = any || each.age >= late;
    // Operations that have reached half of the limit are in the question, too: if a rank is silent or has left, one line then
    // tells of all operations in the question that need this rank. If the rank answers, group() sets the next question for the
    // time when the next operation has reached the limit.
    if (each.age >= limit(last) / 2) chosen.push_back(&each);
  }
  if (!any) return false;
  // The oldest come first, because the question has room for kMost operations only.
  std::ranges::sort(chosen, {}, &Stalled::record);

  Question& question = inquiry_.emplace(Question());  // Clang 14 needs the argument
  question.number = ++numbers_;
  question.last = last;
  question.since = now;
  question.all = chosen.size();
  // Determined now, because note() records no movement of data while the question is open.
  question.moving = seconds_between(moved_at_, now) < limit(last) / 2;
  chosen.resize(std::min(chosen.size(), Inquiry::kMost));
  actions.inquiry = {.number = question.number, .last = last, .patience = patience()};
  for (const Stalled* each : chosen) {
    const Request& request = *each->request;
    question.operations.push_back({each->record, request.set, describe(request), each->under_way,
                                   roster.needed_for(request)});
    actions.inquiry.operations.push_back({request.set, request.name});
    actions.inquiry.where = actions.inquiry.where || last || !is_told(each->record);
    for (const int rank : question.operations.back().others) {
      if (!roster.has_left(rank)) question.answers.emplace(rank, std::nullopt);
    }
  }
  for (const auto& [rank, answer] : question.answers) actions.ask.push_back(rank);
  return true;
}

void StallInspector::hear(int rank, StallReply answer) {
  if (!inquiry_ || inquiry_->number != answer.number) return;
  const auto found = inquiry_->answers.find(rank);
  if (found == inquiry_->answers.end()) return;
  for (const std::uint32_t index : answer.in_hand) {
    if (index >= inquiry_->operations.size()) continue;
    in_hand_[{inquiry_->operations[index].set, inquiry_->last}] =
        inquiry_->since + from_seconds((inquiry_->last ? 0 : limits_.warn) + kGrace);
  }
  found->second = std::move(answer);
}

// An example: the ranks 2 and 5 ask each other about one set at the same time, with the same `last`, and neither has written a
// line. On rank 2, claim(5, ...) returns true, because rank 2 has the lower number and asks, too. On rank 5, claim(2, ...)
// returns false. So rank 2 writes the line, and group() leaves the operation out on rank 5.
bool StallInspector::claim(int rank, SetId set, bool last, Time now) {
  const auto of_set = [&](const auto& each) { return each.set == set; };
  const bool asks = inquiry_ && inquiry_->last == last && rank_ < rank &&
                    std::ranges::any_of(inquiry_->operations, of_set);
  const bool told = !last && !episodes_.empty() && !in_hand(set, last, now);
  if (asks || told) return true;
  in_hand_[{set, last}] = now + from_seconds((last ? 0 : limits_.warn) + kGrace);
  return false;
}

// An operation under way is agreed or matched, so it waits for no rank to submit it. But if the operation has ended on a rank,
// that rank's answer names the operation in `lacks`. So for an operation under way `lacks` does not count.
bool StallInspector::is_missing(const Question& question, std::size_t index, int rank) const {
  const auto answer = question.answers.find(rank);
  if (answer == question.answers.end() || !answer->second)
    return true;  // the rank has left, or is silent
  return !question.operations[index].under_way &&
         std::ranges::count(answer->second->lacks, static_cast<std::uint32_t>(index)) > 0;
}

// Groups the operations of the question by their Reason, and sets when to ask again. Leaves out
// - operations that have ended, and operations of a set that another rank looks after;
// - an operation if all its missing ranks have answered, and this rank has waited for each of them for less than the limit;
// - an operation without a missing rank if it is under way and data have moved lately, or if this question is the first that
//   finds no missing rank (unexplained_).
std::vector<StallInspector::StalledOperations> StallInspector::group(
    Time now, const Question& question, std::span<const Stalled> stalled) {
  const double most = limit(question.last);
  double pause = question.last ? std::min(most, kGrace) : most;
  std::vector<StalledOperations> groups;
  for (std::size_t i = 0; i < question.operations.size(); ++i) {
    const PendingOperation& asked = question.operations[i];
    const Stalled* still = find(stalled, asked.record);
    if (still == nullptr || in_hand(asked.set, question.last, now)) continue;
    std::vector<int> missing;
    // Is a rank missing that answers, and for which this rank has waited for less than the limit?
    bool early = false;
    for (const int rank : asked.others) {
      if (!is_missing(question, i, rank)) continue;
      const auto answer = question.answers.find(rank);
      const bool answers = answer != question.answers.end() && answer->second;
      // During the exemption of a rank, the other ranks wait for it and give no warning. So for a rank that answers, only the
      // time since the end of its exemption counts.
      const double waited =
          answers ? std::min(still->age, answer->second->since_exemption) : still->age;
      if (answers && waited < most) {
        early = true;
        pause = std::clamp(most - waited, kShortestPause, pause);
      } else {
        missing.push_back(rank);
      }
    }
    // If the last missing rank submitted the operation just before its answer, no rank lacks the operation any more, and the
    // operation is about to run. So the first question that finds no missing rank writes nothing about the operation.
    if (missing.empty() && (early || (asked.under_way && question.moving) ||
                            unexplained_.insert(asked.record).second)) {
      continue;
    }
    const Reason reason{missing, missing.empty() && asked.under_way};
    auto same = std::ranges::find(groups, reason, &StalledOperations::reason);
    if (same == groups.end()) {
      same = groups.insert(groups.end(), StalledOperations{reason, {}, 0, 0});
    }
    same->operations.push_back(&asked);
    same->age = std::max(same->age, still->age);
  }
  if (groups.size() == 1) groups[0].more = question.unasked();
  next_[question.last ? 1 : 0] = now + from_seconds(pause);
  return groups;
}

void StallInspector::conclude(Time now, std::span<const Stalled> stalled, const Names& names,
                              Actions& actions) {
  // The question ends before group() and tell() are called. So it does not stay open if one of them throws.
  const Question question = std::move(*inquiry_);
  inquiry_.reset();
  const std::vector<StalledOperations> groups = group(now, question, stalled);
  std::string verdict;
  for (const StalledOperations& each : groups) {
    if (question.last) {
      verdict += (verdict.empty() ? "" : "; ") + tell(each, question, names);
      continue;
    }
    auto told = std::ranges::find(episodes_, each.reason, &Episode::reason);
    if (told == episodes_.end()) {
      std::string ending;
      if (limits_.give_up > 0) {
        ending = "; all ranks give up after " + in_seconds(limits_.give_up) +
                 " (HVDLITE_STALL_SHUTDOWN_TIME_SECONDS)";
      }
      actions.warnings.push_back("stall: " + tell(each, question, names) + ending);
      told = episodes_.insert(episodes_.end(),
                              {each.reason, {}, list(each), now - from_seconds(each.age)});
    }
    for (const PendingOperation* asked : each.operations) told->records.insert(asked->record);
  }
  std::string rest;
  if (groups.size() > 1 && question.unasked() > 0) {
    rest = "; " + more_operations(question.unasked()) +
           (question.unasked() == 1 ? " has waited, too" : " have waited, too");
  }
  if (!actions.warnings.empty()) actions.warnings.back() += rest;
  if (verdict.empty()) return;
  actions.verdict = "gave up after " + in_seconds(limits_.give_up) +
                    " (HVDLITE_STALL_SHUTDOWN_TIME_SECONDS): " + shortened(verdict, kMostText) +
                    rest;
}

std::string StallInspector::list(const StalledOperations& group) {
  std::string text;
  const std::size_t named = std::min(group.operations.size(), kNamed);
  for (std::size_t i = 0; i < named; ++i) {
    text += (i > 0 ? ", " : "") + shortened(group.operations[i]->text, kMostOperation);
  }
  const std::size_t more = group.operations.size() - named + group.more;
  if (more > 0) text += " and " + more_operations(more);
  return text;
}

std::string StallInspector::tell(const StalledOperations& group, const Question& question,
                                 const Names& names) {
  const bool many = group.operations.size() > 1;
  std::string text = list(group) + (many ? " have" : " has") + " waited " + in_seconds(group.age);
  const std::vector<int>& missing = group.reason.missing;
  if (missing.empty()) {
    return text + (group.reason.under_way
                       ? ": under way on all ranks, but no data move"
                       : ", though no rank lacks " + std::string(many ? "them" : "it"));
  }
  const std::size_t named = std::min(missing.size(), kRanksNamed);
  for (std::size_t i = 0; i < named; ++i) {
    text += (i > 0 ? ", and for " : " for ") + where_is(missing[i], many, question, names);
  }
  if (named < missing.size()) {
    text += ", and for " + std::to_string(missing.size() - named) + " more ranks";
  }
  return text;
}

std::string StallInspector::where_is(int rank, bool many, const Question& question,
                                     const Names& names) {
  std::string text = names.roster.describe(rank) + ", which ";
  const auto answer = question.answers.find(rank);
  if (answer == question.answers.end()) return text + "has left";
  if (!answer->second) {
    const std::string state = names.state_of(rank);
    return text + "does not answer" + (state.empty() ? "" : ": " + state);
  }
  const std::string& where = answer->second->text;
  return text + "has not submitted " + (many ? "them" : "it") +
         (where.empty() ? "" : ": " + shortened(where, kMostPlace));
}

}  // namespace hvdlite::engine
