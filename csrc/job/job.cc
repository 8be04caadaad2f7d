#include "job/job.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "base/wire.h"
#include "engine/model/text.h"

namespace hvdlite::job {

using base::ErrorCode;
using engine::FailureDetector;
using engine::Roster;

namespace {

// When a process ends, messages that it has sent before may still be under way: a part of the exchange, or the cause of its
// end. This time is enough for them to arrive.
constexpr base::microseconds kGrace{50'000};
// For at most this time a failed process goes on sending the cause of its failure.
constexpr base::microseconds kDelivery{200'000};
// The time between two looks is shortest_silence() divided by kLooksInSilence, and at most kLongestInterval.
constexpr int kLooksInSilence = 10;
constexpr base::microseconds kLongestInterval{1'000'000};
// When a bounded exchange has lasted for longer than `patience`, a host counts as silent if nothing has come from it for more
// than this part of `patience`.
constexpr double kSilencePart = 0.5;

// What a message holds: a RoundMessage of the exchange, or a control message of the failure detector.
enum class MessageKind : std::uint8_t { kPart, kControl };

Bytes encode(const RoundMessage& part) {
  base::Writer writer;
  writer.put(MessageKind::kPart);
  writer.put(part.exchange);
  writer.put(part.round);
  writer.put(static_cast<std::uint32_t>(part.values.size()));
  for (const Bytes& value : part.values) writer.put_vector(value);
  return writer.take();
}

RoundMessage decode_part(base::Reader& reader) {
  RoundMessage part;
  part.exchange = reader.get<std::uint32_t>();
  part.round = reader.get<std::uint32_t>();
  const auto count = reader.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count; ++i) part.values.push_back(reader.get_vector<std::byte>());
  return part;
}

Bytes encode(const Card& card) {
  base::Writer writer;
  writer.put_string(card.host);
  writer.put(static_cast<std::int32_t>(card.pid));
  writer.put_string(card.system);
  writer.put(static_cast<std::uint8_t>(card.sends_heartbeats ? 1 : 0));
  return writer.take();
}

Card card_of(std::size_t rank, const Bytes& bytes) {
  try {
    base::Reader reader(bytes);
    Card card;
    card.host = reader.get_string();
    card.pid = reader.get<std::int32_t>();
    card.system = reader.get_string();
    card.sends_heartbeats = reader.get<std::uint8_t>() != 0;
    return card;
  } catch (const base::Error& error) {
    throw base::Error(error.code(), "cannot read what rank " + std::to_string(rank) +
                                        " says of itself: " + error.what());
  }
}

// The roster (the ranks, their hosts and their descriptions) before the first exchange has ended: it knows only the ranks'
// numbers.
Roster strangers(const transport::Transport& transport) {
  std::vector<Roster::Rank> ranks;
  for (int rank = 0; rank < transport.size(); ++rank) {
    ranks.push_back({rank, "rank " + std::to_string(rank)});
  }
  return {transport.rank(), std::move(ranks)};
}

Roster roster_of(int me, const std::vector<Card>& cards) {
  std::map<std::string, int> leaders;
  std::vector<Roster::Rank> ranks;
  for (const Card& card : cards) {
    const int rank = static_cast<int>(ranks.size());
    const int leader = leaders.try_emplace(card.system, rank).first->second;
    ranks.push_back({leader, base::describe_rank(rank, card.host, card.pid)});
  }
  return {me, std::move(ranks)};
}

}  // namespace

Job::Job(std::unique_ptr<transport::Transport> transport, base::TimeSource time, Card mine,
         WatchNeighbours watch)
    : transport_(std::move(transport)),
      time_(time),
      watch_(std::move(watch)),
      failures_(strangers(*transport_), {}, time_.now()),
      ended_at_(static_cast<std::size_t>(transport_->size())),
      exchange_(transport_->rank(), transport_->size()) {
  begin(encode(mine), /*bounded=*/true);
}

void Job::begin(Bytes mine, bool bounded) {
  under_way_ = true;
  bounded_ = bounded;
  began_ = time_.now();
  const Exchange::Sends sends = exchange_.begin(std::move(mine));
  guard([&] { send(sends); });
}

bool Job::pass() {
  look();
  if (!under_way_) return true;
  if (exchange_.ended() && told()) {
    if (neighbours_ == nullptr) guard([&] { introduce(); });
    under_way_ = neighbours_ == nullptr;
    if (!under_way_) return true;
  }
  const Time now = time_.now();
  if (!lost()) mind_patience(now);
  if (lost() && told()) throw base::Error(failure_.code, failure_.message);
  return false;
}

void Job::introduce() {
  std::vector<Card> cards;
  for (const Bytes& value : exchange_.values()) cards.push_back(card_of(cards.size(), value));
  const int me = transport_->rank();
  std::vector<int> pids;
  all_send_heartbeats_ = true;
  for (const Card& card : cards) {
    const bool here = card.system == cards[static_cast<std::size_t>(me)].system;
    pids.push_back(here && static_cast<int>(pids.size()) != me ? card.pid : 0);
    all_send_heartbeats_ = all_send_heartbeats_ && card.sends_heartbeats;
  }
  neighbours_ = watch_(pids);
  failures_ = FailureDetector(roster_of(me, cards), {}, time_.now());
}

void Job::set_limits(Limits limits) {
  limits_ = limits;
  if (!all_send_heartbeats_ || lost()) return;
  failures_ =
      FailureDetector(failures_.roster(), {limits.silence, shortest_silence()}, time_.now());
}

// The smaller one of those limits that are not 0, in seconds; 0 if both are 0.
double Job::shortest_silence() const {
  if (limits_.silence <= 0 || limits_.patience <= 0) {
    return std::max(limits_.silence, limits_.patience);
  }
  return std::min(limits_.silence, limits_.patience);
}

base::microseconds Job::look_interval() const {
  return std::min(base::from_seconds(shortest_silence()) / kLooksInSilence, kLongestInterval);
}

// --- what others say and do -------------------------------------------------------------------------------------------

template <typename Step>
void Job::guard(Step step) {
  if (lost()) return;  // MPI may abort if a failed request is touched again
  try {
    step();
  } catch (const std::exception& error) {
    const auto* known = dynamic_cast<const base::Error*>(&error);
    const ErrorCode code = known != nullptr ? known->code() : ErrorCode::kInternal;
    // MPI reports that a rank is lost, but not which one.
    Actions actions = failures_.find_lost(*this);
    // If the step has found a failure, but the error came before apply() could store it, find_lost() gives no actions.
    if (actions.empty() && !lost()) actions = failures_.fail(code, error.what());
    apply(actions);
  }
}

void Job::look() {
  guard([&] { receive(); });
  guard([&] {
    apply(failures_.find_lost(*this));
    if (!failures_.failed()) apply(failures_.keep_in_touch(time_.now(), *this));
  });
}

void Job::receive() {
  int source = 0;
  std::vector<std::byte> bytes;
  while (transport_->receive_message(&source, &bytes)) hear(source, bytes);
}

void Job::hear(int source, const std::vector<std::byte>& bytes) {
  base::Reader reader(bytes);
  if (reader.get_enum<MessageKind>(2, "kind") == MessageKind::kPart) {
    send(exchange_.hear(source, decode_part(reader)));
    return;
  }
  const engine::Message message = engine::decode(std::span(bytes).subspan(sizeof(MessageKind)));
  if (const auto* failure = std::get_if<engine::Failure>(&message); failure && !lost()) {
    apply(failures_.hear(source, *failure));
  } else if (std::holds_alternative<engine::Alive>(message)) {
    failures_.hear_heartbeat(source, time_.now());
  }
}

// Finds a lost rank: one that MPI reports, or one of this host whose process has ended.
bool Job::find_lost(int* rank, std::string* how) {
  if (transport_->find_lost_peer(rank, how)) return true;
  for (int peer = 0; neighbours_ != nullptr && peer < transport_->size(); ++peer) {
    if (failures_.roster().has_left(peer) || !neighbours_->has_ended(peer)) continue;
    Time& since = ended_at_[static_cast<std::size_t>(peer)];
    const Time now = time_.now();
    if (since == Time()) since = now;
    if (now - since < kGrace) continue;
    *rank = peer;
    *how = transport::kEndedUntold;
    return true;
  }
  return false;
}

// --- carrying out actions ---------------------------------------------------------------------------------------------

void Job::send(const Exchange::Sends& sends) {
  for (const Exchange::RoutedMessage& each : sends)
    transport_->send_message(each.to, encode(each.part));
}

// Ignores log lines, and the actions that only Membership takes, which need an engine.
void Job::apply(const Actions& actions) {
  for (const auto& action : actions) {
    if (const auto* send = std::get_if<FailureDetector::Send>(&action)) {
      send_control(send->to, send->message);
    } else if (const auto* announce = std::get_if<FailureDetector::Announce>(&action)) {
      tell_failure(announce->cause, announce->ranks);
    } else if (const auto* warn = std::get_if<FailureDetector::Warn>(&action)) {
      tell_failure(warn->cause, warn->ranks);
    } else if (const auto* fail = std::get_if<FailureDetector::Fail>(&action); fail && !lost()) {
      failure_ = fail->why;
      failed_at_ = time_.now();
    }
  }
}

void Job::send_control(int to, const engine::Message& message) {
  base::Writer writer;
  writer.put(MessageKind::kControl);
  std::vector<std::byte> bytes = writer.take();
  const std::vector<std::byte> content = engine::encode(message);
  bytes.insert(bytes.end(), content.begin(), content.end());
  transport_->send_message(to, std::move(bytes));
}

void Job::tell_failure(const std::string& cause, const std::vector<int>& ranks) {
  try {
    for (const int rank : ranks) send_control(rank, engine::Failure{cause});
  } catch (const base::Error&) {
    // The ranks that get no message have to find the loss by themselves.
  }
}

std::string Job::tell(const std::string& cause) {
  apply(failures_.raise(cause));
  return failures_.me(cause);
}

bool Job::told() {
  try {
    if (transport_->messages_flushed()) return true;
  } catch (const base::Error&) {
    return true;
  }
  return lost() && time_.now() - failed_at_ > kDelivery;
}

// --- patience ---------------------------------------------------------------------------------------------------------

void Job::mind_patience(Time now) {
  if (limits_.patience <= 0 || base::seconds_between(began_, now) <= limits_.patience) return;
  const std::string text = awaited();
  if (text.empty()) return;
  apply(failures_.give_up(ErrorCode::kTimeout,
                          "gave up after HVDLITE_STALL_SHUTDOWN_TIME_SECONDS (" +
                              base::to_text(limits_.patience) + " s), waiting for " + text));
}

// Describes the ranks for which this process has waited too long; "" if it goes on waiting.
std::string Job::awaited() const {
  std::string stopped;
  bool some_ended = false;
  for (int peer = 0; neighbours_ != nullptr && peer < transport_->size(); ++peer) {
    some_ended = some_ended || neighbours_->has_ended(peer);
    if (neighbours_->is_stopped(peer)) stopped += (stopped.empty() ? "" : ", ") + describe(peer);
  }
  if (!stopped.empty()) return stopped + " (stopped by SIGSTOP, SIGTSTP or a debugger)";
  const std::string silent = failures_.silent_for(limits_.patience * (bounded_ ? kSilencePart : 1));
  if (!silent.empty()) return "the host of " + silent + ": " + engine::kSilentHost;
  return bounded_ && !some_ended ? "other ranks" : "";
}

void Job::kill_the_stopped() {
  for (int peer = 0; neighbours_ != nullptr && peer < transport_->size(); ++peer) {
    if (neighbours_->is_stopped(peer)) neighbours_->kill(peer);
  }
}

}  // namespace hvdlite::job
