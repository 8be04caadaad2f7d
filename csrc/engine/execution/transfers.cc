#include "engine/execution/transfers.h"

#include <utility>

#include "engine/execution/operation.h"

namespace hvdlite::engine {

template <typename Post>
void Transfers::start(Entry entry, Post post) {
  shared_.reached({&entry, 1}, FlightRecorder::Stage::kStarted);
  Moving& moving = moving_.emplace_back(Moving{std::move(entry), {}});
  naming(*moving.entry.request, [&] { moving.ticket = post(moving.entry); });
}

void Transfers::send(Entry entry, int to) {
  start(std::move(entry), [&](const Entry& each) {
    return transport_.post_send(to, point_to_point_tag(transport_), each.input,
                                each.request->bytes());
  });
}

void Transfers::receive(Entry entry, int from) {
  start(std::move(entry), [&](const Entry& each) {
    return transport_.post_recv(from, point_to_point_tag(transport_), each.output,
                                each.request->bytes());
  });
}

bool Transfers::advance() {
  return std::erase_if(moving_, [&](Moving& each) {
           bool done = false;
           naming(*each.entry.request, [&] { done = transport_.test(each.ticket); });
           if (done) shared_.finish({&each.entry, 1}, base::Status{});
           return done;
         }) > 0;
}

bool Transfers::idle(SetId set) const {
  return std::ranges::none_of(moving_,
                              [&](const Moving& each) { return each.entry.request->set == set; });
}

void Transfers::retain_all(const base::Status& why) {
  for (const Moving& each : std::exchange(moving_, {})) shared_.finish({&each.entry, 1}, why);
}

}  // namespace hvdlite::engine
