// The ways of a payload, and the list that holds the entry meanwhile:
//
//    peer                             list              what moves the payload
//    rank that shares the window      queues_           payload stream: advance() moves each direction's first transfer
//    other rank, a send               queues_, moving_  the transport, when the tensor is in host memory
//    other rank, a receive            moving_           the transport, at once
//    this rank                        own_              advance_own(): one copy, when the sent tensor is in host memory
//    other rank, in its Offer         moving_           take(): one copy, at once
//
// Payloads from one rank to another have no numbers by which the receiver could tell them apart. Instead, both ranks start the
// payloads in the same order (PointToPoint), and no payload overtakes another: only the first transfer of a queue may start,
// and a send whose tensor is not in host memory yet delays the later sends to the same rank. Sends to different ranks do not
// wait for each other. Messages of a rank to itself may overtake each other, because each is already matched with its receive.
//
// While a payload moves, its entry is in one of these lists. So if the transport or a copy throws, retain_all() finds the
// entry. This is why take() and advance_own() put entries into moving_ before they copy.
#include "engine/execution/transfers.h"

#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "engine/execution/operation.h"
#include "transport/host_window.h"

namespace hvdlite::engine {

using transport::Progress;

namespace {

// A tensor without bytes needs no copy from or to its GPU.
bool is_staged(const Entry& entry) { return entry.request->on_gpu() && entry.request->bytes() > 0; }

}  // namespace

// --- starting ---------------------------------------------------------------------------------------------------------

// The streams are made at the first payload to or from the rank. They stay until the engine ends, also while no payload uses
// them.
Transfers::Queues& Transfers::queues_with(int peer) {
  const auto [found, is_new] = queues_.try_emplace(peer);
  Queues& queues = found->second;
  const transport::HostWindow* window = transport_.window();
  const int rank = transport_.rank();
  if (!is_new || window == nullptr || transport_.host_of(peer) != transport_.host_of(rank))
    return queues;
  const int here = window->local_rank(), there = transport_.local_rank_of(peer);
  // To read the sender's memory, a receiver needs the sender's process id. Either all ranks of a host know each other's process
  // ids, or no rank knows any. So if this rank knows the peer's id (`known`), the peer knows this rank's id, and can try to
  // read this rank's memory.
  const bool known = transport_.process_of(peer) != 0;
  queues.streams.emplace(
      transport::PayloadWriter(window->payloads(here, there), known),
      transport::PayloadReader(window->payloads(there, here), transport_.process_of(peer)));
  return queues;
}

template <typename Post>
void Transfers::start(Moving transfer, Post post) {
  Moving& moving = moving_.emplace_back(std::move(transfer));
  moving.ticket = naming(*moving.entry.request, [&] { return post(moving); });
}

void Transfers::send(Entry entry, int to) {
  shared_.reached({&entry, 1}, FlightRecorder::Stage::kStarted);
  Queues& queues = queues_with(to);
  queues.sends.push_back({std::move(entry)});
  ++queued_;
  if (!queues.streams) post_sends(queues, to);
}

// The transport matches payloads in the order in which both ranks post them.
bool Transfers::post_sends(Queues& queues, int to) {
  bool any = false;
  while (!queues.sends.empty() && is_here(queues.sends.front())) {
    Moving first = std::move(queues.sends.front());
    queues.sends.pop_front();
    --queued_;
    start(std::move(first), [&](const Moving& each) {
      return transport_.post_send(to, point_to_point_tag(transport_), source_of(each),
                                  each.entry.request->bytes());
    });
    any = true;
  }
  return any;
}

// A receive need not wait for the GPU: the payload of a tensor on a GPU first goes into page-locked memory (make_room). So
// without streams the transport gets every receive at once.
void Transfers::receive(Entry entry, int from) {
  shared_.reached({&entry, 1}, FlightRecorder::Stage::kStarted);
  Queues& queues = queues_with(from);
  if (queues.streams) {
    queues.receives.push_back({std::move(entry)});
    ++queued_;
    make_room(queues.receives.back());
    return;
  }
  start({std::move(entry)}, [&](Moving& each) {
    make_room(each);
    return transport_.post_recv(from, point_to_point_tag(transport_), target_of(each),
                                each.entry.request->bytes());
  });
}

void Transfers::take(Entry receive, const void* payload) {
  moving_.push_back({std::move(receive)});
  Moving& taken = moving_.back();
  make_room(taken);
  const std::size_t bytes = taken.entry.request->bytes();
  if (bytes > 0) std::memcpy(target_of(taken), payload, bytes);
  finish(taken);
  moving_.pop_back();
}

void Transfers::take_own(Entry receive, Entry send) {
  own_.emplace_back(std::move(receive), Moving{std::move(send)});
  advance_own();
}

// For a tensor in host memory `staged` stays empty, so source_of() and target_of() return the tensor's memory.
void Transfers::make_room(Moving& receive) {
  if (!is_staged(receive.entry)) return;
  receive.staged = naming(*receive.entry.request, [&] { return staging_.room_for(receive.entry); });
}

bool Transfers::is_here(Moving& send) {
  if (!is_staged(send.entry)) return true;
  return naming(*send.entry.request, [&] { return staging_.fetch(send.entry, &send.staged); });
}

const void* Transfers::source_of(const Moving& send) {
  return send.staged.host ? send.staged.host.data() : send.entry.input;
}

void* Transfers::target_of(const Moving& receive) {
  return receive.staged.host ? receive.staged.host.data() : receive.entry.output;
}

// Ends a transfer whose payload has been sent or has arrived. For a receive of a tensor on a GPU, finish() only enqueues the
// copy to the tensor, and the completion's event comes after that copy.
void Transfers::finish(Moving& transfer) {
  const Entry& entry = transfer.entry;
  if (is_staged(entry)) {
    ++shared_.counters.staged_ops;
    if (entry.request->kind == base::OpKind::kRecv) {
      naming(*entry.request, [&] { staging_.bring(entry, &transfer.staged); });
    }
  }
  shared_.finish({&entry, 1}, base::Status{});
}

// --- progress ---------------------------------------------------------------------------------------------------------

// Advances the transfers of one direction, and begins the next transfer only when the first is done. If only a part of a
// payload has moved, the function returns, so that other operations move data, too. ring() wakes the peer, which can now go on:
// it has bytes to read, or room to write more bytes, or its payload has been read completely.
template <typename Advance>
bool Transfers::advance(std::deque<Moving>& transfers, int peer, Advance first) {
  bool any = false;
  while (!transfers.empty()) {
    const Progress progress =
        naming(*transfers.front().entry.request, [&] { return first(transfers.front()); });
    if (progress == Progress::kNone) break;
    any = true;
    transport_.note_progress();
    transport_.ring(peer);
    if (progress == Progress::kSome) break;
    finish(transfers.front());
    transfers.pop_front();
    --queued_;
  }
  return any;
}

// Skips each message whose sent tensor is not in host memory yet.
bool Transfers::advance_own() {
  bool any = false;
  for (auto at = own_.begin(); at != own_.end();) {
    if (!is_here(at->second)) {
      ++at;
      continue;
    }
    Entry receive = std::move(at->first);
    const std::size_t place = moving_.size();
    moving_.push_back(std::move(at->second));
    at = own_.erase(at);
    // By index: take() adds to moving_, so a reference could become invalid.
    take(std::move(receive), source_of(moving_[place]));
    finish(moving_[place]);
    moving_.pop_back();
    any = true;
  }
  return any;
}

void Transfers::tell_refusal(int peer, int error) {
  if (error == 0 || told_refusal_) return;
  told_refusal_ = true;
  shared_.log.write(base::LogLevel::kWarning, "transport",
                    "this process may not read the memory of rank " + std::to_string(peer) +
                        " (process_vm_readv: " + std::generic_category().message(error) +
                        "), so both ranks copy large messages, through shared memory; to permit "
                        "the call, set kernel.yama.ptrace_scope=0, and use a seccomp profile that "
                        "allows it");
}

// Asks the transport about each transfer in moving_, and then advances own_ and the queues. If queued_ is 0, all queues are
// empty, and the function does not visit them.
bool Transfers::advance() {
  bool any = staging_.look_after();
  for (std::size_t place = 0; place < moving_.size();) {
    Moving& each = moving_[place];
    if (!naming(*each.entry.request, [&] { return transport_.test(each.ticket); })) {
      ++place;
      continue;
    }
    finish(each);
    moving_.erase(moving_.begin() + static_cast<std::ptrdiff_t>(place));
    any = true;
  }
  any = advance_own() || any;
  if (queued_ == 0) return any;
  for (auto& [peer, queues] : queues_) {
    if (!queues.streams) {
      any = post_sends(queues, peer) || any;
      continue;
    }
    any = advance(
              queues.sends, peer,
              [&](Moving& each) {
                if (!is_here(each)) return Progress::kNone;
                return queues.streams->out.advance(
                    {static_cast<const std::byte*>(source_of(each)), each.entry.request->bytes()});
              }) ||
          any;
    any = advance(queues.receives, peer,
                  [&](Moving& each) {
                    return queues.streams->in.advance(
                        {static_cast<std::byte*>(target_of(each)), each.entry.request->bytes()});
                  }) ||
          any;
    tell_refusal(peer, queues.streams->in.refused_with());
  }
  return any;
}

bool Transfers::idle(SetId set) const {
  bool none = true;
  for_each([&](const Entry& each) { none = none && each.request->set != set; });
  return none;
}

// Retains only the staged memory. The tensors themselves belong to the callers, who keep them (memory_is_free in
// bindings/ending.h).
void Transfers::retain_all(const base::Status& why) {
  const auto retain = [&](Moving& each) {
    shared_.finish({&each.entry, 1}, why);
    retained_.push_back(std::move(each.staged));
  };
  const auto retain_each = [&](auto transfers) { std::ranges::for_each(transfers, retain); };
  retain_each(std::exchange(moving_, {}));
  for (auto& [receive, send] : std::exchange(own_, {})) {
    shared_.finish({&receive, 1}, why);
    retain(send);
  }
  for (auto& [peer, queues] : queues_) {
    retain_each(std::exchange(queues.sends, {}));
    retain_each(std::exchange(queues.receives, {}));
  }
  queued_ = 0;
}

// If a GPU may still copy from or to memory, the memory is never freed, even if the transport is done with it.
void Transfers::close(bool memory_is_free) {
  for (StagedMemory& each : retained_) {
    if (!memory_is_free || each.is_copying) each.host.abandon();
  }
  retained_.clear();
}

}  // namespace hvdlite::engine
