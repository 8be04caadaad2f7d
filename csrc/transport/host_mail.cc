// How messages cross the rings. send() stores as much of a message as the ring has room for, and wakes the receiving rank. A
// message that is not complete in the ring stays in `unsent`; the next send() to that rank, and each receive() and flushed(),
// stores more of it. So the mail needs no thread, and no call waits for the other rank.
//
//    sender    send() ──► unsent ──► push_unsent() ──► ring
//    receiver                                          ring ──► take() ──► begun ──► receive()
//
// An example: a message of 100000 bytes, and a ring of 64 KiB, whose largest piece has 32760 bytes.
//
//    sender      send()       two pieces of 32760 bytes fill the ring, 34480 bytes wait; rings the receiver's bell
//    receiver    receive()    takes both pieces into `begun`; the sender waits for room, so rings its bell; returns false
//    sender      receive()    stores the pieces of 32760 and 1720 bytes, the last one marked as last
//    receiver    receive()    takes them, and returns the message
//
// The sender rings the receiver's bell after it has stored something. The receiver rings the sender's bell after it has made
// room, if the sender waits for room (mail_ring.h). If the receiver did not ring, a rank with unsent messages would sleep until
// its time limit.
#include "transport/host_mail.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "transport/frames.h"

namespace hvdlite::transport {

HostMail::HostMail(const HostWindow& window, std::function<void(int)> ring)
    : local_rank_(window.local_rank()), ring_(std::move(ring)) {
  for (int other = 0; other < window.ranks(); ++other) {
    boxes_.push_back({MailRingWriter(window.mail(local_rank_, other)),
                      MailRingReader(window.mail(other, local_rank_))});
  }
}

void HostMail::send(int to, std::vector<std::byte> message) {
  Box& box = boxes_[index_of(to)];
  box.unsent.push_back(std::move(message));
  ++unsent_;
  push_unsent(box, to);
}

void HostMail::push_unsent() {
  for (std::size_t to = 0; to < boxes_.size(); ++to) {
    if (!boxes_[to].unsent.empty()) push_unsent(boxes_[to], static_cast<int>(to));
  }
}

// Stores as much as the ring has room for, message by message. If the ring is closed, the receiving rank has left: nobody would
// ever make room, so its messages are dropped. The receiver's bell rings only if this call has stored a piece or dropped a
// message, so that a full ring does not wake its reader again and again.
void HostMail::push_unsent(Box& box, int to) {
  const std::size_t before = box.unsent.size(), done = box.done;
  while (!box.unsent.empty() &&
         (box.out.is_closed() || box.out.put(box.unsent.front(), &box.done))) {
    box.unsent.pop_front();
    box.done = 0;
  }
  unsent_ -= before - box.unsent.size();
  if (box.unsent.size() != before || box.done != done) ring_(to);
}

// First stores more of this rank's unsent messages: a rank that waits perhaps never calls send() again, but it calls receive()
// again and again.
bool HostMail::receive(int* from, std::vector<std::byte>* message) {
  if (unsent_ > 0) push_unsent();
  for (std::size_t looked = 0; looked < boxes_.size(); ++looked) {
    if (++looked_last_ >= boxes_.size()) looked_last_ = 0;
    *from = static_cast<int>(looked_last_);
    if (*from == local_rank_) continue;
    try {
      if (take(boxes_[looked_last_], *from, message)) return true;
    } catch (const base::Error& error) {
      throw base::Error(error.code(), "local rank " + std::to_string(*from) +
                                          " sent an impossible message: " + error.what());
    }
  }
  return false;
}

// The size is checked after each piece, not only at the last one: a damaged ring may have no last piece, and must not make this
// rank use up its memory.
bool HostMail::take(Box& box, int from, std::vector<std::byte>* message) {
  while (box.in.has_any()) {
    const bool last = box.in.take(&box.begun);
    ++box.received;
    if (box.in.starves_writer()) ring_(from);
    if (box.begun.size() > kMostMessageBytes) {
      throw base::Error(base::ErrorCode::kInternal,
                        "the message has " + std::to_string(box.begun.size()) +
                            " bytes or more, and at most " + std::to_string(kMostMessageBytes) +
                            " are allowed");
    }
    if (!last) continue;
    *message = std::exchange(box.begun, {});
    return true;
  }
  return false;
}

bool HostMail::flushed() {
  if (unsent_ > 0) push_unsent();
  return unsent_ == 0;
}

// Rings the other ranks' bells. If a rank sleeps with unsent messages for this rank, it then finds the ring closed and drops
// them.
void HostMail::close() {
  for (std::size_t from = 0; from < boxes_.size(); ++from) {
    if (static_cast<int>(from) == local_rank_) continue;
    boxes_[from].in.close();
    ring_(static_cast<int>(from));
  }
}

}  // namespace hvdlite::transport
