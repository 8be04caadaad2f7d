// A doorbell: what a rank sleeps on until somebody has news for it. Any number of threads may listen to one bell; any process
// that maps it may ring. Memory that is all zero is a bell nobody has rung.
// Thread: any. Owns: nothing. Blocks: wait() only. Throws: nothing.
//
// Ringing costs a fence and a read while nobody listens: no cache line moves between processors.
//
//     who has news                            who looks for news
//   R1  store the news                      L1  listeners + 1
//   R2  fence                               L2  fence
//   R3  read listeners; none: done          L3  seen = rung
//   R4  rung + 1, then wake all sleepers    L4  look for the news: there, so unlisten
//                                           L5  sleep if rung still is what was seen
//
// No ring is lost. The fences R2 and L2 are sequentially consistent, so one comes before the other in an order that all agree
// on. If R2 comes first, L4 finds the news, for what was stored before R2 is seen by reads after L2. If L2 comes first, R3
// reads what L1 wrote or something later: the listener, or that it has stopped listening, and then its next L2 comes after
// this R2 and the first case holds for its next look. So R4 is reached while it listens. If R4 adds before L3 reads, L3 has
// acquired what R1 stored (R4 releases), and L4 finds the news. If it adds later, the kernel compares rung with what was seen
// under the lock that R4's wake takes too: either L5 finds them different and does not sleep, or it sleeps and is woken.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/thread.h"

namespace hvdlite::transport {

class Bell {
 public:
  // What the bell reads, to be given to wait(). Each listen() is ended by one wait() or one unlisten().
  std::uint32_t listen() {
    listeners_.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return rung_.load(std::memory_order_acquire);
  }
  void unlisten() { listeners_.fetch_sub(1, std::memory_order_release); }
  // Sleeps at most limit, and not at all if the bell was rung since listen() read `seen`.
  void wait(std::uint32_t seen, base::microseconds limit) {
    base::futex_wait(rung_, seen, limit, base::FutexScope::kHost);
    unlisten();
  }
  // What was stored before is the news.
  void ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (listeners_.load(std::memory_order_relaxed) == 0) return;
    rung_.fetch_add(1, std::memory_order_release);
    base::futex_wake_all(rung_, base::FutexScope::kHost);
  }

 private:
  std::atomic<std::uint32_t> rung_;
  std::atomic<std::uint32_t> listeners_;
};

}  // namespace hvdlite::transport
