// A doorbell: a rank sleeps on it until another thread has news for the rank. Any number of threads may listen to one bell, and
// any process that maps the bell may ring it. A bell whose memory is all zero is a bell that was never rung.
// Thread: any. Owns: nothing. Blocks: wait() only. Throws: nothing.
//
// While no thread listens, a ring costs a fence and a read: no cache line moves between processors.
//
//     the thread that has news                the thread that looks for news
//   R1  store the news                      L1  listeners + 1
//   R2  fence                               L2  fence
//   R3  read listeners; none: done          L3  seen = rung
//   R4  rung + 1, then wake all sleepers    L4  look for the news: there, so unlisten
//                                           L5  sleep if rung still equals seen
//
// No ring is lost. The fences R2 and L2 are sequentially consistent, so all threads agree which of them comes first. If R2
// comes first, L4 finds the news, because reads after L2 see what was stored before R2. If L2 comes first, R3 reads the count
// of L1 or a later count. If that count does not include the listener any more, the listener has stopped listening. Its next L2
// comes after this R2, so its next look finds the news. If the count includes the listener, R4 follows. If R4 adds before L3
// reads, L3 acquires what R1 stored (R4 releases), and L4 finds the news. If R4 adds after L3 has read, L5 decides: there the
// kernel compares `rung` with `seen` under a lock that R4's wake takes as well. If the two differ, the thread does not sleep.
// If they are equal, the thread sleeps before R4's wake, which wakes it.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/thread.h"

namespace hvdlite::transport {

class Bell {
 public:
  // Returns the value to pass to wait(). Each listen() must be ended by one wait() or one unlisten().
  std::uint32_t listen() {
    listeners_.fetch_add(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return rung_.load(std::memory_order_acquire);
  }
  void unlisten() { listeners_.fetch_sub(1, std::memory_order_release); }
  // Sleeps for at most `limit`. Does not sleep if the bell was rung after listen() read `seen`.
  void wait(std::uint32_t seen, base::microseconds limit) {
    base::futex_wait(rung_, seen, limit, base::FutexScope::kHost);
    unlisten();
  }
  // Call it after the news is stored.
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
