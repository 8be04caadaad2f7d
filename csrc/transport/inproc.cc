// How a message crosses the fabric. Each rank has a mailbox with a lock. A stream is all messages of one sender with one tag;
// in it sends and receives match in order, as MPI's do. Either side may come first:
//
//    receive first   the receive waits as a Wish in the receiver's mailbox; the send copies straight to its memory
//    send first      the send waits as a Parcel; the receive copies from the sender's memory (or from the Parcel's own copy, if
//                    the message is short, because a short send is complete already)
//
// Both halves of a match run under the lock of the receiver's mailbox, so a match happens once, and a withdrawn operation
// (cancel) is never matched.
//
// Control messages of one host go through HostMail and a HostWindow in ordinary memory, by the same code as between processes.
// So the tests that run in one process cover the rings, too.
// An endpoint of the in-process fabric. Of a send and its receive, the one that is posted later performs the match: its thread
// copies the bytes, under the lock of the receiver's mailbox. The other side learns of the match from the operation's atomic
// state.
#include "transport/inproc.h"

#include <cstring>
#include <deque>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/host_mail.h"
#include "transport/inproc_fabric.h"

namespace hvdlite::transport {

using base::Error;
using base::ErrorCode;

namespace {

using PostedTransfer = Fabric::PostedTransfer;
using Mailbox = Fabric::Mailbox;
using Parcel = Fabric::Parcel;
using State = Fabric::State;
using Stream = Fabric::Stream;
using Wish = Fabric::Wish;

// A send of up to this size completes at once, as MPI's eager messages do; a larger send completes when it is matched. The
// limit is so low that tests with segments of a few dozen bytes meet both cases.
constexpr std::size_t kEagerBytes = 32;

// Identifies a stream inside the receiver's mailbox.
std::uint64_t key_of(int source, std::uint32_t tag) {
  return static_cast<std::uint64_t>(source) << 32 | tag;
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::string size_mismatch(int source, int target, std::uint32_t tag, std::size_t sent,
                          std::size_t wanted) {
  return "rank " + std::to_string(source) + " sent " + std::to_string(sent) + " bytes with tag " +
         std::to_string(tag) + " where rank " + std::to_string(target) + " expected " +
         std::to_string(wanted);
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

  ~Endpoint() override {
    close();
    fabric_->lose(rank_, "ended without leaving");
    fabric_->box(rank_).connected.store(false, std::memory_order_release);
  }

  int rank() const override { return rank_; }
  int size() const override { return fabric_->size(); }
  int tag_bits() const override { return 31; }

  Ticket post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) override {
    check_alive(peer);
    bytes_sent_ += bytes;
    const Ticket ticket = open(peer, peer, key_of(rank_, tag));
    hand_over(named(ticket), peer, tag, data, bytes);
    ring(peer);
    return ticket;
  }

  Ticket post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) override {
    check_alive(peer);
    const Ticket ticket = open(rank_, peer, key_of(peer, tag));
    if (take_over(named(ticket), peer, tag, data, bytes)) ring(peer);
    return ticket;
  }

  // A pending operation with a dead rank is withdrawn first. Only if that succeeds does it fail: a match that came before the
  // death still counts, as messages that have arrived do.
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
  // The sender's half of a match: gives the bytes to a waiting receive, or else puts them into the mailbox.
  void hand_over(PostedTransfer& operation, int peer, std::uint32_t tag, const void* data,
                 std::size_t bytes) {
    Mailbox& target = fabric_->box(peer);
    const std::lock_guard lock(target.mutex);
    Stream& stream = target.streams[operation.key];
    if (!stream.wishes.empty()) {
      const Wish wish = stream.wishes.front();
      stream.wishes.pop_front();
      Fabric::drop_if_empty(target, operation.key);
      if (wish.bytes != bytes) {
        reject(*wish.operation, operation, size_mismatch(rank_, peer, tag, bytes, wish.bytes));
      }
      copy_bytes(wish.data, data, bytes);
      wish.operation->complete();
      operation.complete();
    } else if (bytes <= kEagerBytes) {
      Parcel parcel{nullptr, nullptr, bytes, std::vector<std::byte>(bytes)};
      copy_bytes(parcel.copy.data(), data, bytes);
      stream.parcels.push_back(std::move(parcel));
      operation.complete();
    } else {
      stream.parcels.push_back({&operation, data, bytes, {}});
    }
  }

  // The receiver's half. Returns true if the sender waits for the match.
  bool take_over(PostedTransfer& operation, int peer, std::uint32_t tag, void* data,
                 std::size_t bytes) {
    Mailbox& mine = fabric_->box(rank_);
    const std::lock_guard lock(mine.mutex);
    Stream& stream = mine.streams[operation.key];
    if (stream.parcels.empty()) {
      stream.wishes.push_back({&operation, data, bytes});
      return false;
    }
    const Parcel parcel = std::move(stream.parcels.front());
    stream.parcels.pop_front();
    Fabric::drop_if_empty(mine, operation.key);
    const bool awaited = parcel.operation != nullptr;
    PostedTransfer& sender = awaited ? *parcel.operation : operation;
    if (parcel.bytes != bytes) {
      reject(sender, operation, size_mismatch(peer, rank_, tag, parcel.bytes, bytes));
    }
    copy_bytes(data, awaited ? parcel.data : parcel.copy.data(), bytes);
    sender.complete();
    operation.complete();
    return awaited;
  }

  int neighbour(int local_rank) const { return neighbours_[static_cast<std::size_t>(local_rank)]; }

  PostedTransfer& named(const Ticket& ticket) {
    HVD_CHECK(ticket.id <= operations_.size());
    return operations_[ticket.id - 1];
  }

  Ticket open(int mailbox, int peer, std::uint64_t key) {
    if (free_.empty()) {
      operations_.emplace_back();
      free_.push_back(operations_.size());
    }
    const Ticket ticket{free_.back()};
    free_.pop_back();
    PostedTransfer& operation = named(ticket);
    operation.state.store(State::kPending, std::memory_order_relaxed);
    operation.mailbox = mailbox;
    operation.peer = peer;
    operation.key = key;
    fabric_->moved();
    return ticket;
  }

  // Reports different sizes to both sides: this side gets the exception now, and the other side gets it from its next test().
  [[noreturn]] static void reject(PostedTransfer& other, PostedTransfer& own,
                                  const std::string& text) {
    other.fail(ErrorCode::kInternal, text);
    own.fail(ErrorCode::kInternal, text);
    throw Error(ErrorCode::kInternal, text);
  }

  static std::string lost_text(int rank) {
    return "rank " + std::to_string(rank) + " of the in-process fabric was killed";
  }

  bool lost(int peer) {
    return fabric_->deaths() > 0 && (fabric_->dead(peer) || fabric_->dead(rank_));
  }

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
  std::vector<int> neighbours_;            // the ranks of this host by their place there
  std::optional<HostMail> mail_;           // if they share a window
  std::deque<PostedTransfer> operations_;  // the ticket with id n names operations_[n - 1]
  std::vector<std::uint64_t> free_;
  std::vector<bool> told_;  // by rank: has find_lost_peer reported its loss?
  int told_count_ = 0;
};

}  // namespace

// The windows are mapped, not allocated: a window of many ranks is large, and mapped memory takes pages only where a test
// writes.
Fabric::Fabric(const FabricShape& shape)
    : boxes_(static_cast<std::size_t>(shape.size)), rings_(shape.rings) {
  std::map<int, int> leaders;  // by number of the host
  for (int rank = 0; rank < shape.size; ++rank) {
    const int host = shape.hosts.empty() ? 0 : shape.hosts[static_cast<std::size_t>(rank)];
    hosts_.push_back(leaders.emplace(host, rank).first->second);
  }
  for (const auto& [host, leader] : leaders) {
    const auto ranks = static_cast<int>(std::count(hosts_.begin(), hosts_.end(), leader));
    HostWindow::Layout window = HostWindow::Layout::for_ranks(ranks, shape.ledger_bytes);
    if (shape.tile_bytes > 0) window.tile_bytes = shape.tile_bytes;
    if (shape.mail_bytes > 0) window.mail_bytes = shape.mail_bytes;
    const std::size_t bytes = window.bytes();
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    Window made = {window, {static_cast<std::byte*>(memory), Unmap{bytes}}, share_results(ranks)};
    windows_.emplace(leader, std::move(made));
  }
}

std::vector<std::shared_ptr<ResultMemory>> Fabric::share_results(int ranks) {
  std::vector<std::shared_ptr<ResultMemory>> results(static_cast<std::size_t>(ranks));
  if (ranks == 1) return results;
  SharedMemory::Address address;
  std::shared_ptr<SharedMemory> memory;
  try {
    memory = SharedMemory::create(SharedMemory::Kind::kMemfd, "hvdlite-results",
                                  results.size() * FabricShape::kResultBytes, &address);
  } catch (const Error&) {
    return results;  // then results are private
  }
  for (int rank = 0; rank < ranks; ++rank) {
    results[static_cast<std::size_t>(rank)] =
        std::make_shared<ResultMemory>(memory, FabricShape::kResultBytes, rank);
  }
  return results;
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
