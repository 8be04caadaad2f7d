// The inside of the in-process transport. Each rank has one mailbox with the messages sent to the rank that it has not
// received, and with the receives that have not met their send.
// Thread: any; each mailbox has its lock, and the counters are atomic. Owns: copies of small messages; the poster of an
// operation owns the operation. Blocks: only for the locks. Throws: Error(InvalidArgument) for a rank that is not in the
// fabric.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/bell.h"
#include "transport/host_window.h"
#include "transport/inproc.h"

namespace hvdlite::transport {

class Fabric {
 public:
  enum class State : int { kPending, kComplete, kFailed };

  // One posted send or receive. Its poster owns it. Until it is matched the mailbox points to it.
  struct PostedTransfer {
    std::atomic<State> state{State::kPending};
    int mailbox = 0;  // the receiver's rank, where the operation waits for its match
    int peer = 0;
    std::uint64_t key = 0;
    // These two are written before `state` becomes kFailed.
    base::ErrorCode code = base::ErrorCode::kOk;
    std::string failure;

    void complete() { state.store(State::kComplete, std::memory_order_release); }
    void fail(base::ErrorCode why, std::string text) {
      code = why;
      failure = std::move(text);
      state.store(State::kFailed, std::memory_order_release);
    }
  };

  // A send without its receive. An eager send is a copy of the bytes, without an operation.
  struct Parcel {
    PostedTransfer* operation = nullptr;
    const void* data = nullptr;
    std::size_t bytes = 0;
    std::vector<std::byte> copy;
  };

  // A receive without its send.
  struct Wish {
    PostedTransfer* operation = nullptr;
    void* data = nullptr;
    std::size_t bytes = 0;
  };

  // All messages from one source with one tag, in the order of posting. One of the two queues is empty.
  struct Stream {
    std::deque<Parcel> parcels;
    std::deque<Wish> wishes;
  };

  struct Message {
    int source = 0;
    std::vector<std::byte> bytes;
  };

  struct Mailbox {
    std::mutex mutex;  // guards streams, messages, loss and left
    std::unordered_map<std::uint64_t, Stream> streams;
    std::deque<Message> messages;

    Bell bell = {};

    std::atomic<bool> dead{false};
    std::atomic<bool> connected{false};

    std::string loss;  // how this rank was lost to the others; empty if it was not
    bool left = false;
  };

  explicit Fabric(const FabricShape& shape);

  // host_of: the lowest rank on the rank's host. local_rank_of: the rank's place there.
  int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  int local_rank_of(int rank) const {
    return static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank, host_of(rank)));
  }
  HostWindow window_of(int rank) const {
    const Window& window = windows_.at(host_of(rank));
    HostWindow seen(window.memory.get(), window.shape, local_rank_of(rank));
    seen.set_results(window.results[static_cast<std::size_t>(local_rank_of(rank))]);
    return seen;
  }

  void rings(int rank) const {
    if (rings_) rings_(rank);
  }

  int size() const { return static_cast<int>(boxes_.size()); }
  Mailbox& box(int rank) { return boxes_[static_cast<std::size_t>(rank)]; }
  bool dead(int rank) { return box(rank).dead.load(std::memory_order_acquire); }
  int deaths() const { return deaths_.load(std::memory_order_acquire); }
  void moved() { activity_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t activity() const { return activity_.load(std::memory_order_relaxed); }

  void check_rank(int rank) const {
    if (rank >= 0 && rank < size()) return;
    throw base::Error(base::ErrorCode::kInvalidArgument,
                      "rank " + std::to_string(rank) + " is not one of the fabric's ranks 0-" +
                          std::to_string(size() - 1));
  }

  void kill(int rank) {
    if (!box(rank).dead.exchange(true, std::memory_order_acq_rel)) {
      deaths_.fetch_add(1, std::memory_order_release);
    }
    lose(rank, "was killed");
  }

  // From now on find_lost_peer() of the other ranks reports this rank. The first reason counts.
  void lose(int rank, const std::string& how) {
    {
      Mailbox& lost = box(rank);
      const std::lock_guard lock(lost.mutex);
      if (lost.left || !lost.loss.empty()) return;
      lost.loss = how;
    }
    losses_.fetch_add(1, std::memory_order_release);
    moved();
    for (int other = 0; other < size(); ++other) box(other).bell.ring();
  }

  void leave(int rank) {
    Mailbox& leaving = box(rank);
    const std::lock_guard lock(leaving.mutex);
    leaving.left = true;
  }

  int losses() const { return losses_.load(std::memory_order_acquire); }

  std::string loss_of(int rank) {
    Mailbox& lost = box(rank);
    const std::lock_guard lock(lost.mutex);
    return lost.loss;
  }

  // Takes an unmatched operation out of its mailbox. Returns false if it was matched meanwhile.
  bool cancel(PostedTransfer& operation) {
    Mailbox& target = box(operation.mailbox);
    const std::lock_guard lock(target.mutex);
    const auto found = target.streams.find(operation.key);
    if (found == target.streams.end()) return false;
    const bool withdrawn =
        withdraw(found->second.parcels, &operation) || withdraw(found->second.wishes, &operation);
    drop_if_empty(target, operation.key);
    return withdrawn;
  }

  static void drop_if_empty(Mailbox& target, std::uint64_t key) {
    const auto found = target.streams.find(key);
    if (found == target.streams.end()) return;
    if (found->second.parcels.empty() && found->second.wishes.empty()) target.streams.erase(found);
  }

 private:
  struct Unmap {
    std::size_t bytes = 0;
    void operator()(std::byte* memory) const { munmap(memory, bytes); }
  };
  struct Window {
    HostWindow::Layout shape;
    std::unique_ptr<std::byte, Unmap> memory;
    std::vector<std::shared_ptr<ResultMemory>> results;  // by local rank
  };

  static std::vector<std::shared_ptr<ResultMemory>> share_results(int ranks);

  template <typename Entry>
  static bool withdraw(std::deque<Entry>& entries, const PostedTransfer* operation) {
    for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
      if (entry->operation != operation) continue;
      entries.erase(entry);
      return true;
    }
    return false;
  }

  std::deque<Mailbox> boxes_;
  std::vector<int> hosts_;
  std::map<int, Window> windows_;  // by host
  std::function<void(int)> rings_;
  std::atomic<int> deaths_{0};
  std::atomic<int> losses_{0};
  std::atomic<std::uint64_t> activity_{0};
};

}  // namespace hvdlite::transport
