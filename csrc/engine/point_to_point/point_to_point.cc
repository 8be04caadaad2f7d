// The steps of the machine of point_to_point.h. (Over 400 lines, because each of its tables is changed by what callers ask, by
// messages and by endings.)
//
// Receives that wait for a message, and messages that wait for a receive, are in two tables:
//
//    posted_     receives without a message   in the order of their places
//    arrivals_   messages without a receive   in the order of arrival
//
// A new receive takes the first message that fits, and a new message the first receive that fits. If none fits, the new one
// goes into its table (but a receive fails if no rank can send a message for it). So no receive in posted_ fits a message in
// arrivals_. The Offers of one sender arrive in the order of its sends. So messages are matched in MPI's order.
//
// The life of a send to another rank, and of a receive:
//
//    admit ─┬─► whole: ends when the Offer is sent
//           └─► offered_ ─┬─ Clearance ──────────► Coming, start_send
//                         ├─ Rejection ──────────► fails, Coming
//                         ├─ a Verdict, leave() ─► fails, Withdrawal
//                         └─ left() ─────────────► fails; the receiver has left, and gets no message
//
//    admit ───► posted_ ──┬─ Offer, whole or of this rank ─► take, take_own, or fails
//                         ├─ Offer of another rank ────────► Clearance or Rejection; answered_
//                         └─ a Verdict, left(), leave() ───► fails
//              answered_ ─┬─ Coming ───────────────────────► start_receive; after a Rejection: fails
//                         └─ Withdrawal ───────────────────► receive() again, with its old place
//
// When a send is removed from offered_, its receiver gets one Coming or one Withdrawal, unless the receiver has left. (After a
// failure of this rank, end_all() tells nobody.) So a receiver gets exactly one of the two for each receive in its answered_,
// also if messages cross:
//
//    rank 0                                 rank 1
//    Offer 5        ──────────────────────► a receive fits: answered_
//    fails: Withdrawal 5 ─────╲  ╱───────── Clearance 5
//                              ╲╱
//    no send 5: nothing  ◄─────╱╲─────────► receive() again
//
// Which payload belongs to which receive: for one send after the other, the sender sends Coming and then calls start_send.
// Messages arrive in the order in which they were sent. So the receiver calls start_receive in the order in which the sender
// calls start_send.
//
// Who ends an entry if a step throws: the entry is moved into a table only after the table has made room for the entry. After
// the move end_all() finds the entry in the table. Before the move the entry belongs to the calling function: match_or_post()
// posts it again, and Cycle ends an entry from the queue.
#include "engine/point_to_point/point_to_point.h"

#include <algorithm>
#include <utility>

#include "engine/model/hashing.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::Status;

namespace {

bool fits(const Request& receive, int source, const Offer& offer) {
  return receive.set == offer.set && (receive.root == kAny || receive.root == source) &&
         (receive.tag == kAny || receive.tag == offer.tag);
}

std::string describe_content(const std::string& dtype, std::int64_t elements) {
  return std::to_string(elements) + (elements == 1 ? " element of " : " elements of ") + dtype;
}

}  // namespace

PointToPoint::PointToPoint(const Settings& settings, Effects& effects)
    : settings_(settings),
      effects_(effects),
      heard_(static_cast<std::size_t>(settings.ranks)),
      unreceived_(heard_.size()),
      untold_(heard_.size()),
      left_(static_cast<std::size_t>(settings.ranks)) {}

// Messages for the set may have arrived before this rank knew the set's members, and hear() could not check these messages. So
// this function drops such a message if its sender or this rank is no member.
void PointToPoint::add_set(const ProcessSet& set) {
  newest_epoch_ = std::max(newest_epoch_, set.id.epoch);
  sets_[set.id] = set.members;
  std::erase_if(arrivals_, [&](const Arrival& arrival) {
    return arrival.offer.set == set.id && (!set.is_member() || set.index_of(arrival.source) < 0);
  });
}

// A program may send messages that no receive ever takes. These messages count as received when their set is removed, because
// otherwise the sender could never use this part of its limit again.
void PointToPoint::remove_set(SetId set) {
  sets_.erase(set);
  for (const Arrival& each : arrivals_) {
    if (each.offer.set == set) count_received(each.source, each.offer);
  }
  std::erase_if(arrivals_, [&](const Arrival& each) { return each.offer.set == set; });
}

// --- what this rank asks ----------------------------------------------------------------------------------------------

void PointToPoint::admit(Entry& entry) {
  if (!owed_.empty()) {
    const Status owed = std::move(owed_.front());
    owed_.pop_front();
    effects_.finish({&entry, 1}, owed);
  } else if (ended_) {
    fail(entry, *ended_);
  } else if (!sets_.contains(entry.request->set)) {
    fail(entry, {ErrorCode::kInvalidArgument, kRemovedSet});
  } else if (entry.request->kind == base::OpKind::kSend) {
    send(entry);
  } else {
    effects_.posted(entry);
    receive(entry, ++last_place_);
  }
}

void PointToPoint::send(Entry& entry) {
  const Request& request = *entry.request;
  const int to = request.root;
  if (has_left(to)) {
    return fail(entry, {ErrorCode::kAborted,
                        "the receiving rank has left: its program ended or called "
                        "shutdown(), and it takes part in no later operation"});
  }
  Offer offer{request.set,    ++last_number_, request.tag,          request.dtype,
              request.layout, request.count,  display_name(request)};
  effects_.posted(entry);
  if (send_whole(entry, to, offer)) return;
  // This comes before deliver(): if the Offer is for this rank itself, meet() looks for the send in offered_.
  offered_[offer.number] = std::move(entry);
  deliver(to, std::move(offer));
}

// The bytes are added to unreceived_ before the Offer is sent, because for a message to this rank itself the Receipt may come
// during deliver().
bool PointToPoint::send_whole(const Entry& entry, int to, Offer& offer) {
  const std::size_t bytes = entry.request->bytes();
  std::size_t& unreceived = unreceived_[static_cast<std::size_t>(to)];
  const bool on_gpu = entry.request->on_gpu() && bytes > 0;
  if (on_gpu || bytes > settings_.whole_bytes ||
      unreceived + counted_bytes(bytes) > settings_.unreceived_bytes) {
    return false;
  }
  unreceived += counted_bytes(bytes);
  offer.whole = true;
  offer.payload = {static_cast<const std::byte*>(entry.input), bytes};
  deliver(to, std::move(offer));
  effects_.finish({&entry, 1}, Status{});
  return true;
}

// Sends no Receipt before half of the limit is counted, so that one Receipt reports many messages. So less than half of the
// limit stays unreported: when all messages have been taken and all Receipts have arrived, the sender has more than half of the
// limit free.
void PointToPoint::count_received(int source, const Offer& offer) {
  if (!offer.whole || ended_ || has_left(source)) return;
  std::size_t& untold = untold_[static_cast<std::size_t>(source)];
  untold += counted_bytes(offer.bytes());
  if (2 * untold < settings_.unreceived_bytes) return;
  deliver(source, Receipt{std::exchange(untold, 0)});
}

// Admits a receive, or puts one back after a Withdrawal. Moving the Arrival does not move its bytes, so offer.payload stays
// valid.
void PointToPoint::receive(Entry& entry, std::uint64_t place) {
  const auto found = std::ranges::find_if(arrivals_, [&](const Arrival& each) {
    return fits(*entry.request, each.source, each.offer);
  });
  if (found != arrivals_.end()) {
    Arrival arrival = std::move(*found);
    arrivals_.erase(found);
    return meet(entry, place, arrival.source, arrival.offer);
  }
  if (nobody_sends(*entry.request)) {
    return fail(entry,
                {ErrorCode::kAborted,
                 "every rank that could send this message has left: their programs ended or called "
                 "shutdown(), and they take part in no later operation"});
  }
  posted_.try_emplace(place, std::move(entry));
}

// Can no rank send the message for this receive any more? Another thread of this rank might send to this rank itself. For a
// receive from any rank this possibility counts only in a set of one rank. If it counted in larger sets, too, a receive would
// wait for ever after all other ranks have left.
bool PointToPoint::nobody_sends(const Request& receive) const {
  if (receive.root != kAny) return has_left(receive.root);
  const std::vector<int>& members = *sets_.at(receive.set);
  return members.size() > 1 && std::ranges::all_of(members, [&](int member) {
           return member == settings_.rank || has_left(member);
         });
}

// --- messages ---------------------------------------------------------------------------------------------------------

// A rank delivers Offers, Rejections, Receipts and Withdrawals to itself. For a message to itself a rank needs no Clearance and
// no Coming, because meet() finds the send in offered_. `requires` leaves out the kinds of Message that only other machines
// hear.
void PointToPoint::deliver(int rank, Message message) {
  if (rank != settings_.rank) return effects_.send(rank, message);
  std::visit(
      [&](auto& content) {
        if constexpr (requires { hear(rank, std::move(content)); }) hear(rank, std::move(content));
      },
      message);
}

// A set that this rank does not know has been removed, or is not added yet; the set's epoch says which. The numbers of one
// sender's Offers must ascend. Otherwise two Offers could have the same key in answered_.
void PointToPoint::hear(int source, Offer offer) {
  if (ended_) return;  // this rank's Goodbye tells the sender that this rank has left
  const auto set = sets_.find(offer.set);
  if (set != sets_.end()) {
    HVD_CHECK(std::ranges::binary_search(*set->second, source) &&
              std::ranges::binary_search(*set->second, settings_.rank));
  } else if (offer.set.epoch <= newest_epoch_) {  // the set has been removed
    return count_received(source, offer);
  }
  std::uint64_t& heard = heard_[static_cast<std::size_t>(source)];
  HVD_CHECK(offer.number > std::exchange(heard, offer.number));
  const auto found = std::ranges::find_if(
      posted_, [&](const auto& each) { return fits(*each.second.request, source, offer); });
  if (found == posted_.end()) {
    Arrival& kept = arrivals_.emplace_back(Arrival{source, std::move(offer), {}});
    kept.payload.assign(kept.offer.payload.begin(), kept.offer.payload.end());
    kept.offer.payload = kept.payload;
    return;
  }
  auto taken = posted_.extract(found);
  match_or_post(std::move(taken.mapped()), taken.key(),
                [&](Entry& entry) { meet(entry, taken.key(), source, offer); });
}

template <typename Match>
void PointToPoint::match_or_post(Entry entry, std::uint64_t place, Match match) {
  try {
    match(entry);
  } catch (...) {
    if (entry.request) posted_.try_emplace(place, std::move(entry));
    throw;
  }
}

// What happens to a receive and the message for it; the first row that applies:
//
//    the message           equal dtype, layout and size    otherwise
//    whole                 take                            Rejection, and the receive fails
//    of this rank          take_own                        both fail: the Rejection ends the send at once
//    all others            Clearance, answered_            Rejection, answered_
//
// The receive is in answered_ before the Clearance leaves: if sending throws, end_all() finds the receive there.
void PointToPoint::meet(Entry& receive, std::uint64_t place, int source, const Offer& offer) {
  count_received(source, offer);
  std::string why = why_unequal(receive, source, offer);
  const bool refused = !why.empty();
  if (refused) {
    deliver(source, Rejection{offer.number, offer.whole, why});
    if (offer.whole || source == settings_.rank) {
      return effects_.finish({&receive, 1}, {ErrorCode::kMismatch, why});
    }
  } else {
    receive.completion->value = source;
    receive.completion->contributors = offer.tag;
    effects_.reached({&receive, 1}, Stage::kAgreed);
    if (offer.whole) return effects_.take(std::move(receive), offer.payload.data());
    if (source == settings_.rank) {
      auto send = offered_.extract(offer.number);
      HVD_CHECK(!send.empty());
      return effects_.take_own(std::move(receive), std::move(send.mapped()));
    }
  }
  Answered& answered = answered_[{source, offer.number}];
  answered = {std::move(receive), place, std::move(why)};
  if (!refused) effects_.send(source, Clearance{offer.number});
}

std::string PointToPoint::why_unequal(const Entry& receive, int source, const Offer& offer) const {
  const Request& request = *receive.request;
  if (request.dtype == offer.dtype && request.layout == offer.layout &&
      request.count == offer.elements) {
    return "";
  }
  const std::string theirs =
      describe_content(format_dtype(offer.dtype, offer.layout), offer.elements);
  const std::string mine =
      describe_content(format_dtype(request.dtype, request.layout), request.count);
  return describe(request) + ": rank " + std::to_string(source) + " sent '" + offer.name + "', " +
         theirs + ", but rank " + std::to_string(settings_.rank) + " receives " + mine +
         (theirs == mine ? ", in another memory layout" : "") +
         "; give both tensors one dtype and one number of elements, or the messages different tags";
}

// The send stays in offered_ until the Coming is sent: if sending throws, end_all() finds the send there.
void PointToPoint::hear(int source, Clearance message) {
  const auto found = offered_.find(message.number);
  if (found == offered_.end()) return;  // the send has failed, and this rank has sent a Withdrawal
  HVD_CHECK(found->second.request->root == source);
  effects_.reached({&found->second, 1}, Stage::kAgreed);
  effects_.send(source, Coming{message.number});
  auto taken = offered_.extract(found);
  effects_.start_send(std::move(taken.mapped()), source);
}

void PointToPoint::hear(int source, Coming message) {
  const auto found = answered_.find({source, message.number});
  HVD_CHECK(found != answered_.end());
  const std::string& refusal = found->second.refusal;
  if (!refusal.empty()) {
    effects_.finish({&found->second.receive, 1}, {ErrorCode::kMismatch, refusal});
    answered_.erase(found);
    return;
  }
  auto taken = answered_.extract(found);
  effects_.start_receive(std::move(taken.mapped().receive), source);
}

void PointToPoint::hear(int source, Withdrawal message) {
  auto found = answered_.extract(std::pair(source, message.number));
  if (!found.empty()) {  // the receive looks for another message, or waits again
    const std::uint64_t place = found.mapped().place;
    return match_or_post(std::move(found.mapped().receive), place, [&](Entry& entry) {
      ended_ ? fail(entry, *ended_) : receive(entry, place);
    });
  }
  std::erase_if(arrivals_, [&](const Arrival& each) {
    return each.source == source && each.offer.number == message.number;
  });
}

// A refused send of this rank to itself needs no Coming, because meet() has kept no receive in answered_.
void PointToPoint::hear(int source, const Rejection& message) {
  if (message.whole) {
    owed_.push_back({ErrorCode::kMismatch, "an earlier send was refused: " + message.why});
    return;
  }
  const auto found = offered_.find(message.number);
  if (found == offered_.end()) return;  // the send has failed, and this rank has sent a Withdrawal
  HVD_CHECK(found->second.request->root == source);
  effects_.finish({&found->second, 1}, {ErrorCode::kMismatch, message.why});
  offered_.erase(found);
  if (source != settings_.rank) effects_.send(source, Coming{message.number});
}

void PointToPoint::hear(int source, Receipt message) {
  std::size_t& unreceived = unreceived_[static_cast<std::size_t>(source)];
  HVD_CHECK(message.bytes <= unreceived);
  unreceived -= message.bytes;
}

void PointToPoint::hear(int source, const Verdict& message) {
  HVD_CHECK(source == 0);
  fail_unmatched({ErrorCode::kTimeout, message.text}, [&](const Request& request) {
    return request.set == message.set &&
           std::ranges::find(message.names, request.name) != message.names.end();
  });
}

// --- endings ----------------------------------------------------------------------------------------------------------

void PointToPoint::fail(const Entry& entry, const Status& why) {
  effects_.finish({&entry, 1}, {why.code, describe(*entry.request) + ": " + why.message});
}

// An entry leaves its table after fail(): if there is no memory for the text, end_all() still finds the entry.
template <typename Condition>
void PointToPoint::fail_unmatched(const Status& why, Condition condition) {
  for (Entries* entries : {&offered_, &posted_}) {
    for (auto at = entries->begin(); at != entries->end();) {
      const auto each = at++;
      if (!condition(*each->second.request)) continue;
      fail(each->second, why);
      const auto taken = entries->extract(each);
      const int to = taken.mapped().request->root;
      if (entries == &offered_ && !has_left(to)) deliver(to, Withdrawal{taken.key()});
    }
  }
}

// The flag is set first, because nobody_sends() and fail_unmatched() read it. fail_unmatched() sends no Withdrawal to a rank
// that has left. Whole messages from such a rank stay in arrivals_, for later receives.
void PointToPoint::left(int rank, const Status& why) {
  left_[static_cast<std::size_t>(rank)] = true;
  fail_unmatched(why, [&](const Request& request) {
    return request.kind == base::OpKind::kSend ? request.root == rank : nobody_sends(request);
  });
}

void PointToPoint::leave(const Status& why) {
  ended_ = why;
  fail_unmatched(why, [](const Request&) { return true; });
}

// A rank that has failed calls this in each pass. An entry leaves its table after it has ended: if there is no memory for its
// error, the next call ends it.
void PointToPoint::end_all(const Status& why) {
  for (Entries* entries : {&offered_, &posted_}) {
    for (auto each = entries->begin(); each != entries->end(); each = entries->erase(each)) {
      effects_.finish({&each->second, 1}, why);
    }
  }
  for (auto each = answered_.begin(); each != answered_.end(); each = answered_.erase(each)) {
    effects_.finish({&each->second.receive, 1}, why);
  }
}

// --- questions --------------------------------------------------------------------------------------------------------

bool PointToPoint::waits(SetId set) const {
  bool found = false;
  const auto look = [&](const Entry& entry) { found = found || entry.request->set == set; };
  for_each_unmatched(look);
  for_each_answered(look);
  return found;
}

std::uint64_t PointToPoint::digest() const {
  base::Hasher hasher;
  hasher.add_pair(static_cast<std::int32_t>(owed_.size()), ended_ ? 1 : 0);
  hasher.add(newest_epoch_);
  hasher.add(last_number_);
  hasher.add(last_place_);
  for (const std::uint64_t number : heard_) hasher.add(number);
  for (const bool gone : left_) hasher.add(gone ? 1 : 0);
  for (const std::size_t bytes : unreceived_) hasher.add(bytes);
  for (const std::size_t bytes : untold_) hasher.add(bytes);
  for (const Entries* entries : {&offered_, &posted_}) {
    hasher.add(entries->size());
    for (const auto& [key, entry] : *entries) {
      hasher.add(key);
      add_request(hasher, *entry.request);
    }
  }
  for (const auto& [key, answered] : answered_) {
    hasher.add_pair(key.first, static_cast<std::int32_t>(key.second));
    hasher.add(answered.refusal.empty() ? 0 : 1);
    hasher.add(answered.place);
    add_request(hasher, *answered.receive.request);
  }
  for (const auto& [id, members] : sets_) {
    hasher.add_pair(id.id, static_cast<std::int32_t>(id.epoch));
  }
  hasher.add(arrivals_.size());
  for (const Arrival& arrival : arrivals_) {
    hasher.add_signed(arrival.source);
    add_message(hasher, arrival.offer);
  }
  return hasher.value();
}

}  // namespace hvdlite::engine
