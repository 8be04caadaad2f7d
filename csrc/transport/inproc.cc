// The in-process transport: the fabric with the mailboxes of all ranks, and the endpoint of one rank. (Over 400 lines, because
// an endpoint is read together with the mailboxes that it fills and empties.)
//
// A stream is all transfers from one rank to another with one tag. In it sends and receives match in order, as MPI's do. The
// side whose transfer is posted first waits in the receiver's mailbox. The thread of the other side then performs the match,
// and copies the bytes.
//
//    receive first   the send copies straight to the receive's memory
//    send first      the receive copies from the sender's memory. But a short send is complete already, and its memory may have
//                    changed: then the receive copies from the copy in the mailbox
//
// The life of a transfer. Its PostedTransfer lies in its endpoint's operations_, and its ticket names the place there:
//
//    post() ─┬─ the other side waits ──────► kComplete, or kFailed if the sizes differ
//            ├─ a short send ──────────────► kComplete; a copy of its bytes waits
//            └─ otherwise: kPending ─┬─ post() of the other side ──► kComplete, or kFailed
//                                    ├─ test() after a kill ───────► kFailed, withdrawn
//                                    └─ close() ───────────────────► withdrawn
//    test() ─┬─ kComplete: returns true, and the place serves a later transfer
//            └─ kFailed: throws; the place is not used again
//
// An example: rank 0 sends 8 bytes and then 100 bytes to rank 1 with tag 5, and rank 1 posts its receives later.
//
//    rank 0    post_send(1, 5), 8 bytes      the mailbox of rank 1 gets a copy; the send is complete
//    rank 0    post_send(1, 5), 100 bytes    the mailbox gets a pointer to the transfer; the send is pending
//    rank 1    post_recv(0, 5), 8 bytes      takes the copy; the receive is complete
//    rank 1    post_recv(0, 5), 100 bytes    copies from rank 0's memory, completes both transfers, and rings rank 0
//
// Each mailbox has one lock, and no function holds two of them:
//
//    post(), cancel()                       the lock of the receiver's mailbox     streams; post() also copies under it
//    send_message(), receive_message()      the lock of the receiver's mailbox     messages, if the ranks share no window
//    lose(), leave(), loss_of()             the lock of that rank's mailbox        loss, left
//    test()                                 none, unless it calls cancel()         the transfer's atomic state
//
// Matches and withdrawals (cancel) happen under the same lock. So no transfer is both matched and withdrawn, and when cancel()
// returns, no other thread copies from or to the transfer's memory. The other side learns of the match from the atomic state.
//
// kill() marks the rank as dead and reports its loss by lose(). It changes no transfer: the dead rank's thread and the other
// ranks find the mark in their next calls.
//
// process_of() is always 0 here, so payload streams (payload_stream.h) never read another rank's memory: all payloads go
// through their rings.
//
// Control messages between ranks that share a window go through HostMail, as between processes. So tests that run in one
// process cover the rings as well.
#include "transport/inproc.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/bell.h"
#include "transport/host_mail.h"
#include "transport/host_window.h"

namespace hvdlite::transport {

using base::Error;
using base::ErrorCode;

namespace {

// A send of up to this size completes at once, as MPI's eager messages do; a larger send completes when it is matched. The
// limit is so low that tests with segments of a few dozen bytes meet both cases.
constexpr std::size_t kEagerBytes = 32;

}  // namespace

// Thread: any; each mailbox has its lock, and the counters are atomic. Owns: copies of short sends, control messages that have
// not been received, and the hosts' windows.
// Blocks: only for the locks. Throws: Error(InvalidArgument) for a rank that is not in the fabric.
class Fabric {
 public:
  enum class State : int { kPending, kComplete, kFailed };

  // One posted send or receive. Its endpoint owns it. While it waits for its match, the mailbox points to it.
  struct PostedTransfer {
    std::atomic<State> state{State::kPending};
    int mailbox = 0;  // the receiver's rank, where the operation waits for its match
    int peer = 0;
    std::uint64_t key = 0;
    // These two are written before `state` becomes kFailed.
    ErrorCode code = ErrorCode::kOk;
    std::string failure;

    void complete() { state.store(State::kComplete, std::memory_order_release); }
    void fail(ErrorCode why, std::string text) {
      code = why;
      failure = std::move(text);
      state.store(State::kFailed, std::memory_order_release);
    }
  };

  // A send without its receive, or a receive without its send.
  struct UnmatchedTransfer {
    PostedTransfer* operation = nullptr;  // null: an eager send, which has left its bytes here
    void* data = nullptr;
    std::size_t bytes = 0;
    std::vector<std::byte> copy{};
  };

  // The unmatched transfers from one source with one tag, in the order of posting. They are all sends or all receives.
  struct Stream {
    std::deque<UnmatchedTransfer> unmatched;
    bool are_sends = false;
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

    std::string loss;  // how this rank was lost; empty if it was not
    bool left = false;
  };

  explicit Fabric(const FabricShape& shape);

  // host_of: the lowest rank on the rank's host. local_rank_of: the rank's place there.
  int host_of(int rank) const { return hosts_[static_cast<std::size_t>(rank)]; }
  int local_rank_of(int rank) const { return window_of(rank).local_rank(); }
  const HostWindow& window_of(int rank) const { return windows_[static_cast<std::size_t>(rank)]; }

  void rings(int rank) const {
    if (rings_) rings_(rank);
  }

  int size() const { return static_cast<int>(boxes_.size()); }
  Mailbox& box(int rank) { return boxes_[static_cast<std::size_t>(rank)]; }
  bool dead(int rank) { return box(rank).dead.load(std::memory_order_acquire); }
  void moved() { activity_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t activity() const { return activity_.load(std::memory_order_relaxed); }

  void check_rank(int rank) const {
    if (rank >= 0 && rank < size()) return;
    throw Error(ErrorCode::kInvalidArgument, "rank " + std::to_string(rank) +
                                                 " is not one of the fabric's ranks 0-" +
                                                 std::to_string(size() - 1));
  }

  // The mark comes first: when find_lost_peer() reports the rank, posts to it already throw.
  void kill(int rank) {
    box(rank).dead.store(true, std::memory_order_release);
    lose(rank, "was killed");
  }

  // From now on find_lost_peer() of the other ranks reports this rank, unless it has left. The first reason counts.
  void lose(int rank, const std::string& how) {
    {
      Mailbox& lost = box(rank);
      const std::lock_guard lock(lost.mutex);
      if (lost.left || !lost.loss.empty()) return;
      lost.loss = how;
    }
    // After the cause: a rank that sees the new count finds the cause.
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

  // Takes an unmatched operation out of its mailbox. Returns false if it was matched meanwhile. A stream without transfers is
  // erased, here and in post(). Otherwise empty streams would fill the mailbox, because most operations have their own tags.
  bool cancel(PostedTransfer& operation) {
    Mailbox& target = box(operation.mailbox);
    const std::lock_guard lock(target.mutex);
    const auto found = target.streams.find(operation.key);
    if (found == target.streams.end()) return false;
    auto& unmatched = found->second.unmatched;
    const bool withdrawn = std::erase_if(unmatched, [&](const UnmatchedTransfer& each) {
                             return each.operation == &operation;
                           }) > 0;
    if (unmatched.empty()) target.streams.erase(found);
    return withdrawn;
  }

 private:
  std::deque<Mailbox> boxes_;
  std::vector<int> hosts_;
  std::vector<HostWindow> windows_;  // by rank, as the rank sees its host's
  std::function<void(int)> rings_;
  std::atomic<int> losses_{0};
  std::atomic<std::uint64_t> activity_{0};
};

namespace {

using PostedTransfer = Fabric::PostedTransfer;
using UnmatchedTransfer = Fabric::UnmatchedTransfer;
using Mailbox = Fabric::Mailbox;
using State = Fabric::State;

// The key of a stream in the receiver's mailbox: the source in the upper half, the tag in the lower half.
std::uint64_t key_of(int source, std::uint32_t tag) {
  return static_cast<std::uint64_t>(source) << 32 | tag;
}

// An empty transfer may have null pointers, which memcpy must not get.
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// Takes the source and the tag out of the key.
std::string size_mismatch(std::uint64_t key, int target, std::size_t sent, std::size_t wanted) {
  const auto tag = static_cast<std::uint32_t>(key);
  return "rank " + std::to_string(key >> 32) + " sent " + std::to_string(sent) +
         " bytes with tag " + std::to_string(tag) + " where rank " + std::to_string(target) +
         " expected " + std::to_string(wanted);
}

class Endpoint final : public Transport {
 public:
  Endpoint(std::shared_ptr<Fabric> fabric, int rank, bool use_window)
      : fabric_(std::move(fabric)),
        rank_(rank),
        window_(fabric_->window_of(rank)),
        use_window_(use_window),
        told_(static_cast<std::size_t>(fabric_->size()), false) {
    for (int peer = 0; peer < size(); ++peer) {
      if (host_of(peer) == host_of(rank_)) neighbours_.push_back(peer);
    }
    if (use_window_ && neighbours_.size() > 1) {
      mail_.emplace(window_, [this](int local_rank) {
        ring(neighbour(local_rank));
        fabric_->rings(neighbour(local_rank));
      });
    }
  }

  // lose() does nothing after announce_leaving(). `connected` comes last: only then may a new endpoint of this rank post.
  ~Endpoint() override {
    close();
    fabric_->lose(rank_, "ended without leaving");
    fabric_->box(rank_).connected.store(false, std::memory_order_release);
  }

  int rank() const override { return rank_; }
  int size() const override { return fabric_->size(); }
  int tag_bits() const override { return 31; }

  Ticket post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) override {
    // The bytes of a send are only read, so const_cast is safe.
    const PostedTicket posted =
        post(true, peer, peer, key_of(rank_, tag), const_cast<void*>(data), bytes);
    bytes_sent_ += bytes;
    ring(peer);
    return posted.ticket;
  }

  Ticket post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) override {
    const PostedTicket posted = post(false, peer, rank_, key_of(peer, tag), data, bytes);
    if (posted.ends_other) ring(peer);
    return posted.ticket;
  }

  // If cancel() finds nothing, the other side has matched the transfer just before. Then the state has the result, so it is
  // read again, and a later call reports the loss.
  bool test(Ticket& ticket) override {
    if (!ticket) return true;
    PostedTransfer& operation = named(ticket);
    if (operation.state.load(std::memory_order_acquire) == State::kPending &&
        lost(operation.peer) && fabric_->cancel(operation)) {
      const int gone = fabric_->dead(rank_) ? rank_ : operation.peer;
      operation.fail(ErrorCode::kPeerLost, lost_text(gone));
    }
    const State state = operation.state.load(std::memory_order_acquire);
    if (state == State::kFailed) throw Error(operation.code, operation.failure);
    if (state == State::kPending) return false;
    free_.push_back(ticket.id);
    ticket = {};
    ++activity_;
    fabric_->moved();
    return true;
  }

  // A message to a dead rank vanishes, as a message to a killed process may. Its sender learns of the loss by find_lost_peer().
  void send_message(int peer, std::vector<std::byte> message) override {
    HVD_CHECK(peer != rank_);
    fabric_->check_rank(peer);
    if (fabric_->dead(rank_)) throw Error(ErrorCode::kPeerLost, lost_text(rank_));
    if (fabric_->dead(peer)) return;
    fabric_->moved();
    if (mail_ && host_of(peer) == host_of(rank_)) {
      return mail_->send(local_rank_of(peer), std::move(message));
    }
    Mailbox& target = fabric_->box(peer);
    {
      const std::lock_guard lock(target.mutex);
      target.messages.push_back({rank_, std::move(message)});
    }
    ring(peer);
  }

  bool receive_message(int* source, std::vector<std::byte>* message, bool host_only) override {
    if (fabric_->dead(rank_)) throw Error(ErrorCode::kPeerLost, lost_text(rank_));
    int local_rank = 0;
    if (mail_ && mail_->receive(&local_rank, message)) {
      *source = neighbour(local_rank);
      fabric_->moved();
      return true;
    }
    if (host_only) return false;
    // The mailbox has the messages of ranks that share no window with this rank, in the order of sending.
    Mailbox& mine = fabric_->box(rank_);
    const std::lock_guard lock(mine.mutex);
    if (mine.messages.empty()) return false;
    *source = mine.messages.front().source;
    *message = std::move(mine.messages.front().bytes);
    mine.messages.pop_front();
    fabric_->moved();
    return true;
  }

  bool messages_flushed() override { return !mail_ || mail_->flushed(); }

  std::uint32_t listen() override { return fabric_->box(rank_).bell.listen(); }
  void unlisten() override { fabric_->box(rank_).bell.unlisten(); }
  void wait(std::uint32_t seen, std::chrono::microseconds limit) override {
    fabric_->box(rank_).bell.wait(seen, limit);
  }
  void ring(int peer) override { fabric_->box(peer).bell.ring(); }
  bool reaches_by_bell(int) const override { return true; }

  int host_of(int peer) const override { return fabric_->host_of(peer); }
  int local_rank_of(int peer) const override { return fabric_->local_rank_of(peer); }
  HostWindow* window() override { return use_window_ ? &window_ : nullptr; }
  void note_progress() override {
    ++activity_;
    fabric_->moved();
  }

  void announce_failure(const std::string& cause) override { fabric_->lose(rank_, cause); }
  // The result is always true: no thread touches the memory of a withdrawn transfer, and the copy of a matched one is over.
  bool close() override {
    if (mail_) mail_->close();
    for (PostedTransfer& operation : operations_) {
      if (operation.state.load(std::memory_order_acquire) == State::kPending) {
        fabric_->cancel(operation);
      }
    }
    return true;
  }

  void announce_leaving() override { fabric_->leave(rank_); }

  // Equal counts mean that no rank was lost since the last call, so the usual call takes no lock. This rank's own loss is
  // counted as told, but not reported.
  bool find_lost_peer(int* rank, std::string* how) override {
    if (fabric_->losses() == told_count_) return false;
    for (int peer = 0; peer < size(); ++peer) {
      if (told_[static_cast<std::size_t>(peer)]) continue;
      const std::string loss = fabric_->loss_of(peer);
      if (loss.empty()) continue;
      told_[static_cast<std::size_t>(peer)] = true;
      ++told_count_;
      if (peer == rank_) continue;
      *rank = peer;
      *how = loss;
      return true;
    }
    return false;
  }

 private:
  struct PostedTicket {
    Ticket ticket;
    bool ends_other = false;  // the other side waited for the match
  };

  // Matches the transfer with the first one that waits for it; if there is none, leaves it in the receiver's mailbox.
  PostedTicket post(bool sends, int peer, int receiver, std::uint64_t key, void* data,
                    std::size_t bytes) {
    check_alive(peer);
    if (free_.empty()) {
      operations_.emplace_back();
      free_.push_back(operations_.size());
    }
    const Ticket ticket{free_.back()};
    free_.pop_back();
    PostedTransfer& own = named(ticket);
    own.state.store(State::kPending, std::memory_order_relaxed);
    own.mailbox = receiver;
    own.peer = peer;
    own.key = key;
    fabric_->moved();
    Mailbox& box = fabric_->box(receiver);
    const std::lock_guard lock(box.mutex);
    const auto place = box.streams.try_emplace(key).first;
    auto& [unmatched, are_sends] = place->second;
    // If no transfer waits, or if those that wait are of the same kind (sends or receives), this transfer has no match yet.
    if (unmatched.empty() || are_sends == sends) {
      are_sends = sends;
      unmatched.push_back({&own, data, bytes});
      if (sends && bytes <= kEagerBytes) {
        // `data` stays valid when the UnmatchedTransfer is moved, because the bytes of a moved vector keep their address.
        UnmatchedTransfer& left = unmatched.back();
        left.copy.resize(bytes);
        copy_bytes(left.copy.data(), data, bytes);
        left.data = left.copy.data();
        left.operation = nullptr;
        own.complete();
      }
      return {ticket};
    }
    const UnmatchedTransfer other = std::move(unmatched.front());
    unmatched.pop_front();
    if (unmatched.empty()) box.streams.erase(place);
    const UnmatchedTransfer mine = {&own, data, bytes};
    const UnmatchedTransfer& from = sends ? mine : other;
    const UnmatchedTransfer& to = sends ? other : mine;
    // The mailbox has no pointer to the PostedTransfer of an eager send, because that send is complete. In this case `own`
    // stands for both sides.
    PostedTransfer& theirs = other.operation != nullptr ? *other.operation : own;
    if (from.bytes != to.bytes)
      reject(theirs, own, size_mismatch(key, receiver, from.bytes, to.bytes));
    copy_bytes(to.data, from.data, bytes);
    theirs.complete();
    own.complete();
    return {ticket, other.operation != nullptr};
  }

  int neighbour(int local_rank) const { return neighbours_[static_cast<std::size_t>(local_rank)]; }

  PostedTransfer& named(const Ticket& ticket) {
    HVD_CHECK(ticket.id <= operations_.size());
    return operations_[ticket.id - 1];
  }

  // Reports different sizes: this side gets the exception now, and the other side gets it from its next test(). If the other
  // side is an eager send, it was complete before, and only this side learns of the mistake.
  [[noreturn]] static void reject(PostedTransfer& other, PostedTransfer& own,
                                  const std::string& text) {
    other.fail(ErrorCode::kInternal, text);
    own.fail(ErrorCode::kInternal, text);
    throw Error(ErrorCode::kInternal, text);
  }

  static std::string lost_text(int rank) {
    return "rank " + std::to_string(rank) + " of the in-process fabric was killed";
  }

  bool lost(int peer) { return fabric_->dead(peer) || fabric_->dead(rank_); }

  void check_alive(int peer) {
    fabric_->check_rank(peer);
    if (lost(peer)) {
      throw Error(ErrorCode::kPeerLost, lost_text(fabric_->dead(rank_) ? rank_ : peer));
    }
  }

  std::shared_ptr<Fabric> fabric_;
  int rank_;
  HostWindow window_;
  bool use_window_;
  std::vector<int> neighbours_;   // the ranks of this host by their place there
  std::optional<HostMail> mail_;  // if they share a window
  // The ticket with id n names operations_[n - 1]. In a deque elements keep their addresses, to which mailboxes point.
  std::deque<PostedTransfer> operations_;
  std::vector<std::uint64_t> free_;
  std::vector<bool> told_;  // by rank: has find_lost_peer reported its loss?
  int told_count_ = 0;
};

}  // namespace

namespace {

// Makes one ResultMemory for each rank of a host, all over the same memory; each gives blocks of its own rank's part only.
// Null: the rank's results are private. If the system refuses the memory, the tests run with private results.
std::vector<std::shared_ptr<ResultMemory>> share_results(std::size_t ranks) {
  std::vector<std::shared_ptr<ResultMemory>> results(ranks);
  if (ranks == 1) return results;
  SharedMemory::Address address;
  std::shared_ptr<SharedMemory> memory;
  try {
    memory = SharedMemory::create(SharedMemory::Kind::kMemfd, "hvdlite-results",
                                  ranks * FabricShape::kResultBytes, &address);
  } catch (const Error&) {
    return results;
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    results[rank] =
        std::make_shared<ResultMemory>(memory, FabricShape::kResultBytes, static_cast<int>(rank));
  }
  return results;
}

// The memory of a window. The ranks are threads of one process, so it need not be shared memory. It is zero at first.
std::shared_ptr<std::byte> map_privately(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), [bytes](std::byte* mapped) { munmap(mapped, bytes); }};
}

}  // namespace

// The ranks of a host get their places in ascending order, and the first one stands for the host (hosts_). The loop goes from
// host to host, not from rank to rank. So `windows` sorts the windows by rank for windows_.
Fabric::Fabric(const FabricShape& shape)
    : boxes_(static_cast<std::size_t>(shape.size)), hosts_(boxes_.size()), rings_(shape.rings) {
  std::map<int, std::vector<int>> hosts;  // their ranks, by number of the host
  for (int rank = 0; rank < shape.size; ++rank) {
    hosts[shape.hosts.empty() ? 0 : shape.hosts[static_cast<std::size_t>(rank)]].push_back(rank);
  }
  std::map<int, HostWindow> windows;  // by rank
  for (const auto& [host, ranks] : hosts) {
    HostWindow::Layout layout =
        HostWindow::Layout::for_ranks(static_cast<int>(ranks.size()), shape.ledger_bytes);
    if (shape.tile_bytes > 0) layout.tile_bytes = shape.tile_bytes;
    if (shape.mail_bytes > 0) layout.mail_bytes = shape.mail_bytes;
    const std::shared_ptr<std::byte> memory = map_privately(layout.bytes());
    const auto results = share_results(ranks.size());
    for (std::size_t place = 0; place < ranks.size(); ++place) {
      hosts_[static_cast<std::size_t>(ranks[place])] = ranks.front();
      HostWindow window(memory, layout, static_cast<int>(place));
      window.set_results(results[place]);
      windows.emplace(ranks[place], std::move(window));
    }
  }
  for (auto& [rank, window] : windows) windows_.push_back(std::move(window));
}

std::shared_ptr<Fabric> make_fabric(const FabricShape& shape) {
  if (shape.size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "a fabric needs at least 1 rank, not " + std::to_string(shape.size));
  }
  HVD_CHECK(shape.hosts.empty() || shape.hosts.size() == static_cast<std::size_t>(shape.size));
  return std::make_shared<Fabric>(shape);
}

std::unique_ptr<Transport> connect(std::shared_ptr<Fabric> fabric, int rank, bool use_window) {
  HVD_CHECK(fabric != nullptr);
  fabric->check_rank(rank);
  if (fabric->box(rank).connected.exchange(true, std::memory_order_acq_rel)) {
    throw Error(ErrorCode::kInvalidArgument,
                "rank " + std::to_string(rank) + " of this fabric has an endpoint already");
  }
  return std::make_unique<Endpoint>(std::move(fabric), rank, use_window);
}

void kill(Fabric& fabric, int rank) {
  fabric.check_rank(rank);
  fabric.kill(rank);
}

std::uint64_t activity(const Fabric& fabric) { return fabric.activity(); }

}  // namespace hvdlite::transport
