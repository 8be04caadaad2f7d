// The callers' side of Engine up to the queue: from what a caller states to entries and handles.

#include <algorithm>
#include <array>

#include "engine/engine.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::Error;
using base::ErrorCode;

void Engine::require_accepting() const {
  require_usable();
  if (shared_.failure.happened()) {
    const base::Status first = shared_.failure.status();
    throw Error(first.code, first.message);
  }
  if (shut_down_.load()) {
    throw Error(ErrorCode::kNotInitialized, std::string(kShutDownHere) + "; call init() first");
  }
}

// The requests of these submissions: known ones, or new ones that passed the checks. What is unnamed is never known; to look for it
// would cost four misses of the cache.
void Engine::intern(std::span<const Submission> submissions, SetDirectory::Info set,
                    std::span<Entry> entries) {
  std::unique_lock lock(interning_, std::defer_lock);
  ReadyEvents ready(shared_.devices);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    RequestView view = submissions[i].request;
    if (!set.members || view.set != set.id.id) set = set_of(view, shared_.sets, topology_.rank);
    Entry& entry = entries[i];
    if (view.arena != 0) {
      entry.arena = locate(view, set, *shared_.arenas, submissions[i].input, submissions[i].output);
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
    check_memory(*entry.request, submissions[i].input, submissions[i].output, shared_.devices,
                 known_addresses_);
    if (entry.request->on_gpu()) entry.ready = ready.at(*entry.request, view.stream);
    entry.input = view.absent ? nullptr : submissions[i].input;
    entry.output = submissions[i].output;
  }
}

void Engine::submit(std::span<const Submission> submissions, bool wake, std::int64_t* handles,
                    std::unique_ptr<Watcher> watcher) {
  require_accepting();
  const auto is_unnamed = [](const Submission& submission) {
    return submission.request.name.empty() && submission.request.kind != base::OpKind::kJoin;
  };
  const auto first = std::find_if(submissions.begin(), submissions.end(), is_unnamed);
  if (first == submissions.end()) {
    submit_named(submissions, {}, wake, handles, std::move(watcher));
    return;
  }
  const base::OpKind kind = first->request.kind;
  const SetDirectory::Info info = set_of(first->request, shared_.sets, topology_.rank);
  const SetId set = info.id;
  const std::size_t size = submissions.size();
  const auto lock = shared_.numbering.begin();
  if (size == 1) {
    const Numbering::Name name = shared_.numbering.name(set, kind, 0);
    Submission named = submissions.front();
    named.request.name = name;
    named.request.group = {};
    named.request.unnamed = true;
    submit_named({&named, 1}, info, wake, handles, std::move(watcher));
    shared_.numbering.use(set, kind, 1);
    return;
  }
  const bool grouped =
      first->request.group.empty() && first->request.group_size == static_cast<std::int32_t>(size);
  const std::string label(grouped ? shared_.numbering.name(set, kind, 0) : Numbering::Name());
  std::vector<Submission> named(submissions.begin(), submissions.end());
  std::vector<std::string> names(size);
  std::uint64_t used = grouped ? 1 : 0;
  for (std::size_t i = 0; i < size; ++i) {
    RequestView& view = named[i].request;
    if (!is_unnamed(named[i])) continue;
    if (view.kind != kind || view.set != set.id) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the unnamed operations of one call must be of one kind on one process set");
    }
    names[i] = grouped ? label + '_' + std::to_string(i + 1) + "of" + std::to_string(size)
                       : std::string(shared_.numbering.name(set, kind, used++));
    view.name = names[i];
    view.group = label;
    view.unnamed = true;
  }
  submit_named(named, info, wake, handles, std::move(watcher));
  shared_.numbering.use(set, kind, used);
}

void Engine::submit_named(std::span<const Submission> submissions, SetDirectory::Info set,
                          bool wake, std::int64_t* handles, std::unique_ptr<Watcher> watcher) {
  std::array<Entry, 1> one;
  std::vector<Entry> many(submissions.size() > 1 ? submissions.size() : 0);
  const std::span<Entry> entries =
      many.empty() ? std::span<Entry>(one).first(submissions.size()) : std::span<Entry>(many);
  intern(submissions, std::move(set), entries);
  if (watcher) watcher->awaited = entries.size();
  for (Entry& entry : entries) {
    entry.completion = std::make_shared<Completion>();
    entry.completion->watcher = watcher.get();
  }
  shared_.handles.add(entries, handles);
  const std::int64_t watched = watcher ? static_cast<std::int64_t>(entries.size()) : 0;
  shared_.watched += watched;
  try {
    enqueue(entries, wake);
    [[maybe_unused]] const Watcher* theirs = watcher.release();  // it is its operations' now
  } catch (...) {
    shared_.watched -= watched;
    for (std::size_t i = 0; i < entries.size(); ++i) shared_.handles.release(handles[i]);
    throw;
  }
}

// All or nothing.
void Engine::enqueue(std::span<Entry> entries, bool wake) {
  shared_.submitted(entries);
  // A thread that gave a callback need never wait, so that it does not wait says nothing about it (deadlock detection).
  const bool told = !entries.empty() && entries.front().completion->watcher != nullptr;
  if (!told) shared_.waits.may_submit();
  const bool was_empty = shared_.queue.push(entries);
  shared_.counters.submitted += static_cast<std::int64_t>(entries.size());
  if (wake && was_empty) {
    transport_->ring(transport_->rank());
    kick_.bump();
  }
}

PreparedGroup::Asked Engine::ask(const RequestView& view, const SetDirectory::Info& set) {
  PreparedGroup::Asked asked{check(view, set), nullptr};
  auto absent = std::make_shared<Request>(*asked.present);
  absent->absent = true;
  asked.absent = std::move(absent);
  return asked;
}

std::int64_t Engine::prepare(std::span<const Submission> submissions) {
  require_accepting();
  auto group = std::make_shared<PreparedGroup>();
  NamesInFlight names;
  for (const Submission& submission : submissions) {
    RequestView view = submission.request;
    const SetDirectory::Info set = set_of(view, shared_.sets, topology_.rank);
    PreparedGroup::Member member;
    if (view.arena != 0 &&
        locate(view, set, *shared_.arenas, submission.output, submission.output)) {
      if (group->arena != 0 && group->arena != view.arena) {
        throw Error(ErrorCode::kInvalidArgument,
                    "a prepared group can have places in one arena only, not in " +
                        std::to_string(group->arena) + " and " + std::to_string(view.arena));
      }
      group->arena = view.arena;
      member.place = submission.output;
      member.in_arena = ask(view, set);
      view.arena = view.arena_offset = 0;
    }
    member.anywhere = ask(view, set);
    const RequestPtr request = member.anywhere.present;
    if (request->kind != base::OpKind::kAllreduce) {
      throw Error(ErrorCode::kInvalidArgument,
                  describe(*request) + ": only allreduces can be prepared; submit it instead");
    }
    const PreparedGroup::Member& first = group->members.empty() ? member : group->members.front();
    if (first.anywhere.present->set != request->set) {
      throw Error(ErrorCode::kInvalidArgument,
                  describe(*request) + ": the first of this prepared group is in process set " +
                      std::to_string(first.anywhere.present->set.id) +
                      "; prepare a group for each set");
    }
    if (first.anywhere.present->device != request->device) {
      throw Error(ErrorCode::kInvalidArgument,
                  describe(*request) +
                      ": the tensors of a prepared group are all in host memory or "
                      "all on one GPU; prepare a group for each");
    }
    if (!names.insert(*request)) {
      throw Error(ErrorCode::kInvalidArgument,
                  describe(*request) +
                      ": the name occurs twice in this prepared group; give the "
                      "tensors different names");
    }
    group->members.push_back(std::move(member));
  }
  if (group->members.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "a prepared group needs at least one request");
  }
  return prepared_.add(std::move(group));
}

std::int64_t Engine::submit_prepared(std::int64_t id, std::span<void* const> data,
                                     std::span<const bool> absent, void* stream, bool wake) {
  require_accepting();
  const PreparedGroupPtr group = prepared_.find(id);
  const std::size_t size = group->members.size();
  const Request& first = *group->members.front().anywhere.present;
  const auto set = shared_.sets.find(first.set.id);
  if (!set || set->id != first.set) {
    throw Error(ErrorCode::kInvalidArgument,
                describe(first) +
                    ": the process set of this prepared group was removed; prepare "
                    "the group again on another");
  }
  if (data.size() != size || (!absent.empty() && absent.size() != size)) {
    throw Error(ErrorCode::kInvalidArgument,
                "prepared group " + std::to_string(id) + " has " + std::to_string(size) +
                    " requests, but " + std::to_string(data.size()) + " addresses were given");
  }
  const auto completions = std::make_shared<std::vector<Completion>>(size);
  std::vector<Entry> entries(size);
  const auto arena = group->arena != 0 ? shared_.arenas->find(group->arena) : nullptr;
  ReadyEvents ready(shared_.devices);
  for (std::size_t i = 0; i < size; ++i) {
    const bool has_value = absent.empty() || !absent[i];
    const PreparedGroup::Member& member = group->members[i];
    Entry& entry = entries[i];
    const bool placed = arena && member.place != nullptr && data[i] == member.place;
    const PreparedGroup::Asked& asked = placed ? member.in_arena : member.anywhere;
    if (placed) entry.arena = arena;
    entry.request = has_value ? asked.present : asked.absent;
    check_memory(*entry.request, data[i], data[i], shared_.devices, known_addresses_);
    if (first.on_gpu()) entry.ready = ready.at(first, stream);
    entry.input = has_value ? data[i] : nullptr;
    entry.output = data[i];
    entry.completion = {completions, &(*completions)[i]};
  }
  const std::int64_t handle = shared_.handles.add({{completions, completions->data()}, size});
  try {
    enqueue(entries, wake);
  } catch (...) {
    shared_.handles.release(handle);
    throw;
  }
  return handle;
}

}  // namespace hvdlite::engine
