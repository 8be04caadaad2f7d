#include "engine/execution/transfers.h"

#include <utility>

#include "engine/execution/operation.h"
#include "transport/host_window.h"

namespace hvdlite::engine {

using transport::Progress;

// --- how they go ------------------------------------------------------------------------------------------------------

Transfers::Streams* Transfers::streams_with(int peer) {
  const transport::HostWindow* window = transport_.window();
  const int rank = transport_.rank();
  if (window == nullptr || transport_.host_of(peer) != transport_.host_of(rank)) return nullptr;
  const int here = window->local_rank(), there = transport_.local_rank_of(peer);
  const bool known = transport_.process_of(peer) != 0;
  return &streams_
              .try_emplace(peer, transport::PayloadWriter(window->payloads(here, there), known),
                           transport::PayloadReader(window->payloads(there, here),
                                                    transport_.process_of(peer)))
              .first->second;
}

template <typename Post>
void Transfers::start(Entry entry, Post post) {
  Moving& moving = moving_.emplace_back(Moving{std::move(entry), {}});
  naming(*moving.entry.request, [&] { moving.ticket = post(moving.entry); });
}

void Transfers::send(Entry entry, int to) {
  shared_.reached({&entry, 1}, FlightRecorder::Stage::kStarted);
  if (Streams* streams = streams_with(to)) {
    streams->sends.push_back(std::move(entry));
    ++streamed_;
    return;
  }
  start(std::move(entry), [&](const Entry& each) {
    return transport_.post_send(to, point_to_point_tag(transport_), each.input,
                                each.request->bytes());
  });
}

void Transfers::receive(Entry entry, int from) {
  shared_.reached({&entry, 1}, FlightRecorder::Stage::kStarted);
  if (Streams* streams = streams_with(from)) {
    streams->receives.push_back(std::move(entry));
    ++streamed_;
    return;
  }
  start(std::move(entry), [&](const Entry& each) {
    return transport_.post_recv(from, point_to_point_tag(transport_), each.output,
                                each.request->bytes());
  });
}

// --- progress ---------------------------------------------------------------------------------------------------------

template <typename Advance>
bool Transfers::advance(std::deque<Entry>& entries, int peer, Advance first) {
  bool any = false;
  while (!entries.empty()) {
    Progress progress = Progress::kNone;
    naming(*entries.front().request, [&] { progress = first(entries.front()); });
    if (progress == Progress::kNone) break;
    any = true;
    transport_.note_progress();
    transport_.ring(peer);
    if (progress == Progress::kSome) break;
    const Entry done = std::move(entries.front());
    entries.pop_front();
    --streamed_;
    shared_.finish({&done, 1}, base::Status{});
  }
  return any;
}

bool Transfers::advance() {
  bool any = std::erase_if(moving_, [&](Moving& each) {
               bool done = false;
               naming(*each.entry.request, [&] { done = transport_.test(each.ticket); });
               if (done) shared_.finish({&each.entry, 1}, base::Status{});
               return done;
             }) > 0;
  if (streamed_ == 0) return any;
  for (auto& [peer, streams] : streams_) {
    any = advance(streams.sends, peer,
                  [&streams](const Entry& each) {
                    return streams.out.advance(
                        {static_cast<const std::byte*>(each.input), each.request->bytes()});
                  }) ||
          any;
    any = advance(streams.receives, peer,
                  [&streams](const Entry& each) {
                    return streams.in.advance(
                        {static_cast<std::byte*>(each.output), each.request->bytes()});
                  }) ||
          any;
  }
  return any;
}

bool Transfers::idle(SetId set) const {
  bool none = true;
  for_each([&](const Entry& each) { none = none && each.request->set != set; });
  return none;
}

void Transfers::retain_all(const base::Status& why) {
  const auto fail = [&](const Entry& each) { shared_.finish({&each, 1}, why); };
  for (const Moving& each : std::exchange(moving_, {})) fail(each.entry);
  for (auto& [peer, streams] : streams_) {
    std::ranges::for_each(std::exchange(streams.sends, {}), fail);
    std::ranges::for_each(std::exchange(streams.receives, {}), fail);
  }
  streamed_ = 0;
}

}  // namespace hvdlite::engine
