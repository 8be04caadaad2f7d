// The callers' side of Engine up to the queue: makes entries and handles from requests.
//
// The way of a submission. Each way ends in launch():
//
//    asks that have names   ──────────────────────────────► submit_named: intern ──┐
//    asks without a name    ──► submit_unnamed: numbers ──► submit_named ──────────┼──► launch ──► enqueue ──► push
//    a prepared group       ──► submit_group: fill (only addresses) ───────────────┘
//
// A submission takes all operations or none. All checks come before the push, except two: the push itself checks that the names
// are not in flight and that the queue is not closed. The push takes all entries or none (TensorQueue::push). If the push
// throws, launch() releases the handle.
//
// The completions and the handle exist before the push, because after the push another thread may end the operations at once,
// and may call the watcher. The numbers of unnamed collectives are used up only after the push, so an operation that this rank
// refuses uses up no number. Otherwise this rank's next unnamed operation would have another name than the same operation on
// the other ranks. The lock of Numbering is held until the numbers are used up, so no other thread gets the same number.

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "engine/engine.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::Error;
using base::ErrorCode;

namespace {

bool is_unnamed(const Ask& ask) {
  return ask.request.name.empty() && ask.request.kind != base::OpKind::kJoin;
}

void refuse_label(const RequestView& unnamed) {
  if (unnamed.group.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "an operation of group '" + std::string(unnamed.group) +
                  "' has no name; name all operations of a group that has a label");
}

// All completions of a submission lie in one array, which lives as long as a pointer to any of them. A single completion, the
// usual case, takes one allocation instead of two.
CompletionPtr new_completions(std::size_t size) {
  if (size == 1) return std::make_shared<Completion>();
  const auto all = std::make_shared<std::vector<Completion>>(size);
  return {all, all->data()};
}

void check_weight(const Request& request, double weight) {
  if (!request.weighted || (std::isfinite(weight) && weight >= 0)) return;
  throw Error(ErrorCode::kInvalidArgument,
              describe(request) + ": the weight is " + base::to_text(weight) +
                  "; a weight is finite and 0 or more, such as the number of samples in the batch");
}

// The engine reduces a group as a whole. So members of a weighted group must have one weight and come in one submission.
void check_weights(std::span<const Entry> entries) {
  for (const Entry& entry : entries) {
    const Request& request = *entry.request;
    if (!request.weighted) continue;
    check_weight(request, entry.weight.value);
    if (!request.in_group()) continue;
    const auto alike = std::ranges::count_if(entries, [&](const Entry& other) {
      return other.request->group_hash == request.group_hash && other.weight == entry.weight;
    });
    if (alike == request.group_size) continue;
    throw Error(ErrorCode::kInvalidArgument,
                describe(request) + ": the members of group '" + request.group +
                    "' have a weight; submit all of them in one call, with one weight");
  }
}

// Checks that the request may be in a prepared group with `first` and these names, and adds the request's name to the names.
void check_member(const Request& request, const Request& first, NamesInFlight& names) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, describe(request) + ": " + why);
  };
  if (request.kind != base::OpKind::kAllreduce) {
    refuse("only allreduces can be prepared; submit it instead");
  }
  if (first.set != request.set) {
    refuse("the first of this prepared group is in process set " + std::to_string(first.set.id) +
           "; prepare a group for each set");
  }
  if (first.device != request.device) {
    refuse(
        "the tensors of a prepared group are all in host memory or all on one GPU; prepare one "
        "group for host memory, and one for each GPU");
  }
  if (first.weighted != request.weighted) {
    refuse(
        "all requests of a prepared group are weighted, or none; prepare one group for the "
        "weighted ones, and one for the others");
  }
  if (!names.insert(request)) {
    refuse("the name occurs twice in this prepared group; give the tensors different names");
  }
}

}  // namespace

// The first failure is checked before the shutdown, because the failure is the cause that the user needs.
void Engine::require_accepting() const {
  require_usable();
  if (shared_.failure.happened()) {
    const base::Status first = shared_.failure.status();
    throw Error(first.code, first.message);
  }
  if (shut_down_.load()) throw_shut_down();
}

// Fills in the entries, except their completions. Finds each request among the remembered ones (Interner), or checks it and
// makes a new Request. Requests of unnamed operations are never remembered, so they are not looked up: a look-up costs several
// cache misses.
void Engine::intern(std::span<const Ask> asks, SetDirectory::Info set, std::span<Entry> entries) {
  // The lock is taken at the first request with a name. A submission of unnamed operations needs no lock.
  std::unique_lock lock(interning_, std::defer_lock);
  ReadyEvents ready(shared_.devices);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    RequestView view = asks[i].request;
    if (!set.members || view.set != set.id.id) set = set_of(view, shared_.sets, topology_.rank);
    Entry& entry = entries[i];
    if (view.arena != 0) {
      entry.arena = locate(view, set, *shared_.arenas, asks[i].input, asks[i].output);
    }
    if (view.unnamed) {
      entry.request = check(view, set);
    } else {
      if (!lock.owns_lock()) lock.lock();
      entry.request = interner_.find(view, set.id, hash_of_name(set.id, view.name));
      if (!entry.request) {
        entry.request = check(view, set);
        interner_.remember(entry.request);
      }
    }
    check_memory(*entry.request, asks[i].input, asks[i].output, shared_.devices, known_addresses_);
    if (entry.request->on_gpu()) entry.ready = ready.at(*entry.request, view.stream);
    entry.weight = view.weight;
    entry.input = view.absent ? nullptr : asks[i].input;
    entry.output = asks[i].output;
  }
}

void Engine::submit(const Submission& what, std::int64_t* handle,
                    std::unique_ptr<Watcher> watcher) {
  require_accepting();
  Launch launching{what.wake, what.pool_thread, handle, std::move(watcher)};
  if (what.group != 0) return submit_group(what, std::move(launching));
  const auto unnamed = std::find_if(what.asks.begin(), what.asks.end(), is_unnamed);
  if (unnamed != what.asks.end()) {
    return submit_unnamed(what.asks, *unnamed, std::move(launching));
  }
  submit_named(what.asks, {}, std::move(launching));
}

// Some asks have no name; `first` is the first ask without a name. For example, if the next number is 7, two unnamed allreduces
// get the names allreduce.noname.7 and allreduce.noname.8, and as a group allreduce.noname.7_1of2 and allreduce.noname.7_2of2.
void Engine::submit_unnamed(std::span<const Ask> asks, const Ask& first, Launch launching) {
  const base::OpKind kind = first.request.kind;
  const SetDirectory::Info info = set_of(first.request, shared_.sets, topology_.rank);
  const SetId set = info.id;
  const std::size_t size = asks.size();
  const bool messages = base::is_point_to_point(kind);
  auto lock = shared_.numbering.begin();
  std::array<std::uint64_t, base::kNumOpKinds> used{};
  // Uses up the numbers and releases the lock. For sends and receives, call it before the submission: the submission may make a
  // pass, and a pass may call Numbering::joined(), which takes the lock. In this order a refused send or receive uses up its
  // number, too, which does no harm, because ranks do not compare the names of sends and receives.
  const auto use_up = [&] {
    for (std::size_t each = 0; lock && each < used.size(); ++each) {
      if (used[each] > 0) shared_.numbering.use(set, static_cast<base::OpKind>(each), used[each]);
    }
    lock = {};
  };
  if (size == 1) {
    refuse_label(first.request);
    const std::string name = shared_.numbering.name(set, kind, 0);
    used[static_cast<std::size_t>(kind)] = 1;
    if (messages) use_up();
    Ask named = first;
    named.request.name = name;
    named.request.unnamed = true;
    submit_named({&named, 1}, info, std::move(launching));
    return use_up();
  }
  const bool grouped = first.request.group_size == static_cast<std::int32_t>(size);
  const std::string label = grouped ? shared_.numbering.name(set, kind, 0) : std::string();
  std::vector<Ask> named(asks.begin(), asks.end());
  std::vector<std::string> names(size);
  if (grouped) used[static_cast<std::size_t>(kind)] = 1;
  for (std::size_t i = 0; i < size; ++i) {
    RequestView& view = named[i].request;
    if (!is_unnamed(named[i])) continue;
    refuse_label(view);
    const bool of_two = messages && base::is_point_to_point(view.kind);
    if ((view.kind != kind && !of_two) || view.set != set.id) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the unnamed operations of one call must be of one kind on one process set, or "
                  "sends and receives there; submit the others in another call");
    }
    std::uint64_t& number = used[static_cast<std::size_t>(view.kind)];
    names[i] = grouped ? label + '_' + std::to_string(i + 1) + "of" + std::to_string(size)
                       : shared_.numbering.name(set, view.kind, number++);
    view.name = names[i];
    view.group = label;
    view.unnamed = true;
  }
  if (messages) use_up();
  submit_named(named, info, std::move(launching));
  use_up();
}

// One operation is the usual case, so its entry lies on the stack.
void Engine::submit_named(std::span<const Ask> asks, SetDirectory::Info set, Launch launching) {
  std::array<Entry, 1> one;
  std::vector<Entry> many(asks.size() > 1 ? asks.size() : 0);
  const std::span<Entry> entries = many.empty() ? std::span<Entry>(one) : std::span<Entry>(many);
  intern(asks, std::move(set), entries);
  check_weights(entries);
  launch(entries, std::move(launching));
}

// prepare() has checked the members. Only what may have changed since then, or comes with the submission, is checked here: the
// set, the number of addresses, and the weight; fill() checks addresses, where needed.
void Engine::submit_group(const Submission& what, Launch launching) {
  const PreparedGroupPtr group = prepared_.find(what.group);
  const std::size_t size = group->members.size();
  const Request& first = *group->members.front().anywhere.present;
  const auto set = shared_.sets.find(first.set.id);
  if (!set || set->id != first.set) {
    throw Error(ErrorCode::kInvalidArgument,
                describe(first) +
                    ": the process set of this prepared group was removed; prepare "
                    "the group again on another");
  }
  if (what.data.size() != size) {
    throw Error(ErrorCode::kInvalidArgument,
                "prepared group " + std::to_string(what.group) + " has " + std::to_string(size) +
                    " requests, but " + std::to_string(what.data.size()) + " addresses were given");
  }
  check_weight(first, what.weight.value);
  std::vector<Entry> entries(size);
  fill(*group, what, entries);
  launch(entries, std::move(launching));
}

// Chooses one of the requests (at most four) of each member: by where the tensor lies now (in the arena or not), and by whether
// this rank has a value.
void Engine::fill(const PreparedGroup& group, const Submission& what, std::span<Entry> entries) {
  const auto arena = group.arena != 0 ? shared_.arenas->find(group.arena) : nullptr;
  // Either all members are on one GPU, or none is on a GPU.
  const bool on_gpu = group.members.front().anywhere.present->on_gpu();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const bool has_value = what.absent.empty() || !what.absent[i];
    const PreparedGroup::Member& member = group.members[i];
    void* const data = what.data[i];
    Entry& entry = entries[i];
    const bool placed = arena && member.place != nullptr && data == member.place;
    const PreparedGroup::RequestPair& asked = placed ? member.in_arena : member.anywhere;
    if (placed) entry.arena = arena;
    entry.request = has_value ? asked.present : asked.absent;
    entry.input = has_value ? data : nullptr;
    entry.output = data;
    entry.weight = what.weight;
    // An address in host memory needs no check, unless it is null.
    if (on_gpu || data == nullptr) {
      check_memory(*entry.request, data, data, shared_.devices, known_addresses_);
    }
  }
  if (!on_gpu) return;
  const auto ready = ReadyEvents(shared_.devices).at(*entries.front().request, what.stream);
  for (Entry& entry : entries) entry.ready = ready;
}

void Engine::launch(std::span<Entry> entries, Launch launching) {
  auto& [wake, pool_thread, handle, watcher] = launching;
  const std::size_t size = entries.size();
  CompletionPtr first = new_completions(size);
  for (std::size_t i = 0; i < size; ++i) {
    entries[i].completion = {first, first.get() + i};
    entries[i].completion->watcher = watcher.get();
    entries[i].completion->pool_thread = pool_thread;
  }
  if (watcher) watcher->awaited = size;
  *handle = shared_.handles.add({std::move(first), size});
  const std::int64_t watched = watcher ? static_cast<std::int64_t>(size) : 0;
  shared_.watched += watched;
  try {
    enqueue(entries, wake);
    [[maybe_unused]] const Watcher* theirs = watcher.release();  // the operations own it now
  } catch (...) {
    shared_.watched -= watched;
    shared_.handles.release(*handle);
    throw;
  }
}

// Puts the entries into the queue. If the queue refuses them, the flight recorder and the timeline show all of them as failed.
void Engine::enqueue(std::span<Entry> entries, bool wake) {
  shared_.submitted(entries);
  // A thread that gave a callback may never wait for the operation, and a thread of a pool may never call again. So the
  // deadlock detector must not wait until these threads wait.
  const Completion& completion = *entries.front().completion;
  if (completion.watcher == nullptr && !completion.pool_thread) shared_.waits.may_submit();
  const bool messages = std::ranges::all_of(
      entries, [](const Entry& entry) { return base::is_point_to_point(entry.request->kind); });
  // alone: these sends and receives are the only operations in flight, and have no callback (`watched` already counts them if
  // they have one). With a callback the engine thread makes the pass, because a pass in this thread might call the callback
  // inside submit().
  const bool alone = messages && !has_work() && shared_.watched == 0;
  const bool whole = std::ranges::all_of(entries, [](const Entry& entry) {
    return !entry.request->on_gpu() && entry.request->bytes() <= kWholeBytes;
  });
  const bool was_empty = push(entries);
  shared_.counters.submitted += static_cast<std::int64_t>(entries.size());
  if (!wake || !was_empty || (alone && pass_at_once(whole))) return;
  wake_engine_thread();
}

// Returns true if the queue was empty.
bool Engine::push(std::span<Entry> entries) {
  try {
    return shared_.queue.push(entries);
  } catch (...) {
    for (const Entry& entry : entries) {
      shared_.recorder.reached(entry.completion->record, FlightRecorder::Stage::kFailed);
    }
    if (shared_.tracing) shared_.timeline.reached(entries, FlightRecorder::Stage::kFailed);
    throw;
  }
}

// Makes a pass in the calling thread, for point-to-point entries that were just submitted without a callback while nothing else
// was in flight. A small message leaves in this pass, and a receive takes a message that has arrived. Waking the engine thread
// would take longer, and the engine thread would then hold the token when the caller wants to wait. Returns false if the engine
// thread has to make the pass. whole: the messages are small enough to travel whole. If so, this function does not wake the
// engine thread after the pass, because usually no other rank waits for an answer of this rank. (Another rank waits for one
// only if too many such messages wait for a receive, see PointToPoint::Settings.) A later poll() wakes the engine thread.
bool Engine::pass_at_once(bool whole) {
  if (!bells_reach_all_ || claimed() || !try_take_token()) return false;
  cycle_.pass(true, false);
  give_token_back();
  // A large message needs an exchange of control messages (point_to_point.h), and the engine thread has to handle each of them
  // soon. If the engine thread sleeps at the doorbell, a control message wakes it. So only a sleep at kick_ has to end here.
  if (!whole && has_work()) kick_.bump();
  return true;
}

// --- prepared groups ------------------------------------------------------------------------------------------------

// Both requests have equal hashes, because seal() leaves `absent` out. So ranks with a value agree with ranks without a value.
PreparedGroup::RequestPair Engine::pair_of(const RequestView& view, const SetDirectory::Info& set) {
  PreparedGroup::RequestPair pair{check(view, set), nullptr};
  auto absent = std::make_shared<Request>(*pair.present);
  absent->absent = true;
  pair.absent = std::move(absent);
  return pair;
}

// *arena: the group's arena; 0 until one member has a place.
PreparedGroup::Member Engine::prepare_member(const Ask& member_ask, std::int64_t* arena) {
  RequestView view = member_ask.request;
  const SetDirectory::Info set = set_of(view, shared_.sets, topology_.rank);
  PreparedGroup::Member member;
  if (view.arena != 0 && locate(view, set, *shared_.arenas, member_ask.output, member_ask.output)) {
    if (*arena != 0 && *arena != view.arena) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a prepared group can have places in one arena only, not in " +
                      std::to_string(*arena) + " and " + std::to_string(view.arena) +
                      "; prepare a group for each arena");
    }
    *arena = view.arena;
    member.place = member_ask.output;
    member.in_arena = pair_of(view, set);
    view.arena = view.arena_offset = 0;
  }
  member.anywhere = pair_of(view, set);
  return member;
}

std::int64_t Engine::prepare(std::span<const Ask> asks) {
  require_accepting();
  if (asks.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a prepared group needs at least one request");
  }
  auto group = std::make_shared<PreparedGroup>();
  NamesInFlight names;
  for (const Ask& each : asks) {
    const PreparedGroup::Member& member =
        group->members.emplace_back(prepare_member(each, &group->arena));
    check_member(*member.anywhere.present, *group->members.front().anywhere.present, names);
  }
  return prepared_.add(std::move(group));
}

}  // namespace hvdlite::engine
