// Messages between two ranks of a job. Below this interface is MPI or the in-process fabric.
// Thread: only the holder of the progress token; the doorbell: any. Owns: its operations in flight. Blocks: never, except
// wait(). Throws: Error(PeerLost) if a peer is known to be gone, Error(System) if the layer below refuses, Error(Internal) if a
// message is damaged.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hvdlite::transport {

class HostWindow;  // host_window.h

// The cause of a rank's end, if only the end is known.
inline constexpr const char* kEndedUntold =
    "ended without telling the other ranks: it was killed by a signal or called os._exit";

// Identifies one posted send or receive; id 0 means "none". A ticket is valid until test() returns true.
struct Ticket {
  std::uint64_t id = 0;
  explicit operator bool() const { return id != 0; }
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The number of tag bits for data: every tag is below 1 << tag_bits().
  virtual int tag_bits() const = 0;

  // --- data plane -------------------------------------------------------------------------------------------------
  // The buffer must stay valid until test() returns true; the buffer of a send must also stay unchanged. Messages between two
  // ranks with one tag match receives in the order of posting. Both sides must give the same number of bytes.
  virtual Ticket post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) = 0;
  virtual Ticket post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) = 0;
  // Returns true when complete, and resets the ticket to none. A none ticket is complete.
  virtual bool test(Ticket& ticket) = 0;

  // --- control plane ----------------------------------------------------------------------------------------------
  // Whole messages of 1 byte to kMostMessageBytes (frames.h), in order for each pair of ranks. Not from a rank to itself.
  virtual void send_message(int peer, std::vector<std::byte> message) = 0;
  // Gives the next message that has arrived; false: there is none. host_only: looks only for messages of ranks that share a
  // window with this rank, which is fast.
  virtual bool receive_message(int* source, std::vector<std::byte>* message,
                               bool host_only = false) = 0;
  // Goes on with messages that could not be sent at once. Returns true if every message has now left this rank.
  virtual bool messages_flushed() = 0;

  // --- doorbell ---------------------------------------------------------------------------------------------------
  // Before a thread sleeps, it calls listen(), and looks for work once more. Then it calls wait() with the result of listen(),
  // or unlisten(). A ring after listen() is not lost (bell.h has the proof). ring(peer) is called after something was stored or
  // sent for the peer. If the peer shares this host and sleeps, it wakes; if not, the call costs almost nothing. Any thread may
  // call these functions, and several threads may listen at once.
  virtual std::uint32_t listen() = 0;
  virtual void unlisten() = 0;
  virtual void wait(std::uint32_t seen, std::chrono::microseconds limit) = 0;
  virtual void ring(int peer) = 0;
  // Can ring(peer) wake that rank?
  virtual bool reaches_by_bell(int peer) const = 0;

  // --- hosts ------------------------------------------------------------------------------------------------------
  // host_of: the lowest rank on the peer's host; it stands for the host. local_rank_of: the peer's place among the ranks of its
  // host.
  virtual int host_of(int peer) const = 0;
  virtual int local_rank_of(int peer) const = 0;
  // The memory that the ranks of this host share; null if there is none. All ranks of a host get the same answer.
  virtual HostWindow* window() = 0;
  // Does each host of the job have such a window? All ranks get the same answer.
  virtual bool windows_everywhere() { return window() != nullptr; }
  // A caller reports progress that it has made in shared memory, which the transport does not see. activity() then grows.
  virtual void note_progress() { ++activity_; }

  // --- life and death ---------------------------------------------------------------------------------------------
  // Leaves the cause where other ranks of this host can read it, even when this rank does not answer messages any more.
  virtual void announce_failure(const std::string& cause) = 0;
  // This rank ends without a failure: the other ranks of this host do not take it for lost.
  virtual void announce_leaving() = 0;
  // Has a rank ended without leaving, or announced a failure? If so, gives the rank and the cause, once for each rank. Over MPI
  // without fault tolerance, only ranks of this host are found, and only if the host has shared memory.
  virtual bool find_lost_peer(int* rank, std::string* how) = 0;
  // A number that changes when a message from this rank, or a part of one, arrives: the rank lives. It never changes if
  // the transport does not count.
  virtual std::uint64_t received_from(int /*peer*/) const { return 0; }
  // "rank 3 (host a, pid 17)".
  virtual std::string describe_peer(int peer) const { return "rank " + std::to_string(peer); }
  // The process id of a rank on this host; 0 if unknown.
  virtual int process_of(int /*peer*/) const { return 0; }

  // Stops receiving control messages, and withdraws posted operations where that is possible. Returns true if the memory of
  // posted operations is not touched any more, and false if that is unknown (MPI may touch it until it is finalised).
  virtual bool close() = 0;

  // A number that grows with each completed send and receive, and each note_progress(). A caller compares it with an earlier
  // value.
  std::uint64_t activity() const { return activity_; }
  // Bytes handed to post_send so far.
  std::uint64_t bytes_sent() const { return bytes_sent_; }

 protected:
  std::uint64_t activity_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace hvdlite::transport
