// Point to point between the ranks of a job: the seam below which MPI or the in-process fabric lives.
// Thread: only the holder of the progress token. Owns: its in-flight operations. Blocks: never, except wait().
// Throws: Error(PeerLost) when a peer is known to be gone, Error(System) when the layer below refuses.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hvdlite::transport {

class HostWindow;  // host_window.h

// What is said of a rank whose process is gone, where nothing else is known.
inline constexpr const char* kEndedWithoutWord =
    "ended without a word: it was killed by a signal or called os._exit";

// Names one posted send or receive; id 0 is "none". Spent by the test() that returns true.
struct Ticket {
  std::uint64_t id = 0;
  explicit operator bool() const { return id != 0; }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Bits of tag the data plane may use: every tag is below 1 << tag_bits().
  virtual int tag_bits() const = 0;

  // --- data plane -------------------------------------------------------------------------------------------------
  // The buffer must stay valid and, for a send, unchanged until test() returns true. Messages from one rank to another
  // with one tag match receives in the order of posting; both sides must name the same number of bytes.
  virtual Ticket post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) = 0;
  virtual Ticket post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) = 0;
  // True once complete; the ticket is then reset to none. A none ticket is complete.
  virtual bool test(Ticket& ticket) = 0;

  // --- control plane ----------------------------------------------------------------------------------------------
  // Whole messages of any size, in order for each pair of ranks; never to oneself.
  virtual void send_message(int peer, std::vector<std::byte> message) = 0;
  // host_only: of ranks with which this one shares a window, which is quick to see; others may have sent something as well.
  virtual bool receive_message(int* source, std::vector<std::byte>* message,
                               bool host_only = false) = 0;
  virtual bool messages_flushed() = 0;  // has every message sent so far left this rank

  // --- doorbell ---------------------------------------------------------------------------------------------------
  // A sleeper listens, looks for work once more, and then either calls wait() with what listen() gave, or unlisten(): a ring
  // since listen() is not lost (bell.h has the proof). ring(peer) tells that rank of what was stored or sent before, if it
  // shares this host and sleeps, and costs next to nothing otherwise. Any thread may call these, several may listen at once.
  virtual std::uint32_t listen() = 0;
  virtual void unlisten() = 0;
  virtual void wait(std::uint32_t seen, std::chrono::microseconds limit) = 0;
  virtual void ring(int peer) = 0;
  virtual bool reaches_by_bell(int peer) const = 0;

  // --- hosts ------------------------------------------------------------------------------------------------------
  // The lowest rank on the peer's host, which stands for the host; and the peer's place among that host's ranks.
  virtual int host_of(int peer) const = 0;
  virtual int local_rank_of(int peer) const = 0;
  // What the ranks of this host share; null if there is none. The same answer on all ranks of a host.
  virtual HostWindow* window() { return nullptr; }
  // Have all hosts of the job such a window? The same answer on all ranks.
  virtual bool windows_everywhere() { return window() != nullptr; }
  // Something moved that did not pass through this transport.
  virtual void note_progress() { ++activity_; }

  // --- life and death ---------------------------------------------------------------------------------------------
  // What other ranks of this host can learn of this one even when it no longer answers messages.
  virtual void announce_failure(const std::string& cause) { static_cast<void>(cause); }
  virtual void announce_leaving() {}
  // Has a rank of this host ended without leaving, or announced a failure? If so its rank, and what it said (or how it went).
  virtual bool find_lost_peer(int* rank, std::string* how) {
    static_cast<void>(rank);
    static_cast<void>(how);
    return false;
  }
  // Changes whenever something of this rank has arrived, also a part of a message: a sign of its life. Stays as it is where the
  // transport does not count.
  virtual std::uint64_t received_from(int peer) const {
    static_cast<void>(peer);
    return 0;
  }
  // "rank 3 (host a, pid 17)".
  virtual std::string describe_peer(int peer) const { return "rank " + std::to_string(peer); }
  // The process id of a rank on this host, 0 where it is not known.
  virtual int process_of(int peer) const {
    static_cast<void>(peer);
    return 0;
  }

  // Nothing is sent or received any more. True if from now on the memory of posted operations is left alone; false if that
  // cannot be known (MPI may touch it until it is finalised).
  virtual bool close() = 0;

  // Counts completed sends and receives: has anything moved since I last looked?
  std::uint64_t activity() const { return activity_; }
  // Bytes handed to post_send so far.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 protected:
  std::uint64_t activity_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace hvdlite::transport
