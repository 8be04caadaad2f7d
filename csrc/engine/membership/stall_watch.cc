// What step 6 of the cycle does about stalls: collects what is old, asks, answers, and gives up (the rest of Cycle is cycle.cc).

#include <algorithm>
#include <string_view>

#include "base/files.h"
#include "engine/cycle.h"

namespace hvdlite::engine {

using base::Clock;
using base::ErrorCode;
using base::LogLevel;

namespace {

// Of the time for which the other rank waits for an answer, the part in which the watchdog has to give it.
constexpr double kWatchdogShare = 0.6;

// The letter that the kernel gives the state of a process; 0 where it says nothing.
char state_of_process(int pid) {
  constexpr std::string_view kField = "\nState:";
  const std::string status = base::read_file("/proc/" + std::to_string(pid) + "/status");
  const std::size_t field = status.find(kField);
  if (field == std::string::npos) return '\0';
  const std::size_t at = status.find_first_not_of(" \t", field + kField.size());
  return at != std::string::npos ? status[at] : '\0';
}

std::string describe_process(int pid) {
  switch (pid > 0 ? state_of_process(pid) : '\0') {
    case 'T':
      return "it is stopped (by SIGSTOP or SIGTSTP; SIGCONT lets it go on)";
    case 't':
      return "it is stopped by a debugger";
    case 'D':
      return "it sleeps in the kernel and cannot be interrupted, as on a disk or file server that "
             "is gone";
    case 'Z':
      return "it has ended, and nobody has asked how";
    case 'R':
    case 'S':
      return "it runs, but its engine does not";
    default:
      return "";
  }
}

}  // namespace

std::unique_ptr<StallInspector> Cycle::make_inspector() {
  const StallInspector::Limits limits{shared_.config.stall_check_time_seconds,
                                      shared_.config.stall_shutdown_time_seconds};
  if (limits.least() <= 0 || transport_.size() == 1) return nullptr;
  StallInspector::Job job;
  job.rank = transport_.rank();
  job.others = [this](const Request& request) {
    std::vector<int> others;
    const ProcessSet* set = find_set(request.set);
    if (set == nullptr) return others;
    for (const int member : *set->members) {
      if (member != transport_.rank() && request.asks(member)) others.push_back(member);
    }
    return others;
  };
  job.has_left = [this](int rank) { return left_.contains(rank); };
  job.describe = [this](int rank) { return transport_.describe_peer(rank); };
  job.state_of = [this](int rank) { return describe_process(transport_.process_of(rank)); };
  return std::make_unique<StallInspector>(limits, std::move(job));
}

// Calls visit(entry, under way) for each entry of this rank that has been taken from the queue.
template <typename Visit>
void Cycle::for_each_unfinished(Visit visit) const {
  const auto open = [&](const Entry& entry) { visit(entry, false); };
  for (const auto& [id, set] : sets_) {
    for (const auto& [name, pending] : set->pending) open(pending.entry);
    if (set->accord) set->accord->for_each(open);
  }
  std::ranges::for_each(held_removals_, open);
  executor_.for_each([&](const Entry& entry) {
    if (entry.request) visit(entry, true);
  });
}

std::vector<Stalled> Cycle::stalled(Clock::time_point now) {
  std::vector<Stalled> old;
  // Who has joined waits as long as the others have work: what counts is how long nothing has come of it.
  const double idle = inspector_->still_for(now);
  for_each_unfinished([&](const Entry& entry, bool under_way) {
    double age = inspector_->age(entry.completion->record, now);
    if (entry.request->kind == base::OpKind::kJoin) age = std::min(age, idle);
    if (age < inspector_->least_age() / 2) return;
    old.push_back({entry.completion->record, entry.request.get(), under_way, age});
  });
  return old;
}

void Cycle::inspect_stalls(Clock::time_point now) {
  if (!unanswered_.empty()) answer_inquiries(now);
  if (!inspector_ || !inspector_->due(now)) return;
  inspector_->note(now, shared_.recorder.newest(), transport_.activity());
  const StallInspector::Actions actions = inspector_->look(now, stalled(now));
  for (const int rank : actions.ask) deliver(rank, actions.inquiry);
  for (const std::string& line : actions.warnings) {
    shared_.log.write(LogLevel::kWarning, "control", line);
  }
  for (const std::string& line : actions.news) {
    shared_.log.write(LogLevel::kInfo, "control", "stall: " + line);
  }
  if (actions.verdict.empty()) return;
  broadcast_failure(actions.verdict);
  // The text that the others make of it.
  fail_all({ErrorCode::kPeerLost, transport_.describe_peer(transport_.rank()) + " " +
                                      actions.verdict + ". " + kShutDown});
}

void Cycle::handle(int source, Inquiry& message) {
  const Clock::time_point now = shared_.time.now();
  Whereabouts answer;
  answer.number = message.number;
  answer.unexcused = shared_.excuse.over_for(now);
  for (std::uint32_t place = 0; place < message.operations.size(); ++place) {
    const auto& [id, name] = message.operations[place];
    const ProcessSet* set = find_set(id);
    bool waits = false;
    // By name: Clang before 16 captures no structured binding by itself.
    for_each_unfinished([&waits, &id = id, &name = name](const Entry& entry, bool) {
      waits = waits || (entry.request->set == id && entry.request->name == name);
    });
    if (waits) {
      if (inspector_ && inspector_->claim(source, id, message.last, now)) {
        answer.in_hand.push_back(place);
      }
    } else if (set == nullptr || !has_joined(*set)) {
      answer.lacks.push_back(place);
    }
  }
  const bool asks_watchdog = message.where && !answer.lacks.empty();
  if (asks_watchdog && shared_.watchdog.ask()) {
    const auto until = now + base::from_seconds(message.patience * kWatchdogShare);
    unanswered_.push_back({source, until, std::move(answer)});
  } else {
    deliver(source, std::move(answer));
  }
}

void Cycle::handle(int source, Whereabouts& message) {
  if (inspector_) inspector_->hear(source, std::move(message));
}

void Cycle::answer_inquiries(Clock::time_point now) {
  const std::optional<std::string> where = shared_.watchdog.take();
  std::erase_if(unanswered_, [&](Unanswered& each) {
    if (!where && now < each.until) return false;
    each.answer.text = where
                           ? where->substr(0, Whereabouts::kMostText)
                           : "where its program is cannot be told: native code holds Python's GIL";
    deliver(each.rank, std::move(each.answer));
    return true;
  });
}

}  // namespace hvdlite::engine
