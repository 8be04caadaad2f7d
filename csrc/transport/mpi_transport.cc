// How the transport uses MPI. All calls are non-blocking, and MPI may make progress only inside of them. So the holder of the
// progress token polls, with test() and receive_message().
//
//    data      MPI_Isend / MPI_Irecv with a tag of the operation; a message longer than limit_to() is cut into parts
//    control   in the host: HostMail, if there is a window; else frames of MPI with control_tag_
//              to other hosts: frames of MPI with control_tag_
//    doorbell  the ControlPage's bells, inside the host. Ranks of other hosts cannot ring, so if there are several hosts the
//              engine sleeps for shorter times (engine/pacing.cc)
//
// The way of the frames of control messages between their lists:
//
//    sender      send_message() ──► outgoing_ ── reap_outgoing(): sent ──► freed
//    receiver    spare_ ── post_frame_receives() ──► incoming_ ── receive_by_mpi(): arrived ──► spare_
//    close()     outgoing_ and incoming_, if MPI still has the request ──► given_up_
//
// There are kPostedFrames frames for receives. receive_by_mpi() first posts a receive, from any source, for each spare frame.
// MPI matches the receives in the order of posting, and frames of one sender keep their order. So only the oldest receive is
// tested. An example, 20000 bytes from rank 1 on another host and 100 bytes from rank 2, in the order of arrival:
//
//    from 1    16384 bytes: the length (8 bytes), the first 16376 bytes    assemblers_[1] has a part of a message
//    from 2    108 bytes: the length, 100 bytes                            receive_message() returns rank 2's message
//    from 1    3624 bytes: the rest                                        the next call returns rank 1's message
//
// A Ticket is the number of a slot in `posted_` plus 1, and 0 is no ticket. A slot is used again after its ticket has been
// tested as complete. If MPI refuses a part, post() throws and the slot stays taken, because MPI may have the parts before it.
//
// What a failure leaves behind: until MPI_Finalize, MPI may use the memory of a request that has not ended. So close() keeps
// such frames for ever, and returns false if a slot is taken, so that the engine keeps the tensors.
#include "transport/mpi_transport.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "transport/mpi_library.h"

namespace hvdlite::transport {

using base::Error;
using base::ErrorCode;

namespace {

// The tags of data begin here, above those of control messages.
constexpr int kFirstDataTag = 2;
// Longer messages take several frames. A frame should be sent eagerly, that is, without asking the receiver first. Open MPI's
// limits, which include its own header, are 64 KiB over TCP and 4 KiB within a host. So within a host MPI asks before a frame
// of 4 KiB or more. Frames of that size within a host come only from ranks without a window, and from the job's transport
// (mpi_entrance.cc), which knows no hosts.
constexpr std::size_t kFrameBytes = 16384;
constexpr std::size_t kFrameBytesInHost = 4096;
constexpr int kPostedFrames = 8;
// Up to about this size, MPI sends a message to a rank of the same host eagerly, so the sender does not wait for the receiver.
constexpr std::size_t kLargeBytes = 4096;
constexpr const char* kReceiving = "receiving control messages";

}  // namespace

// tag_bits_ is the largest b for which the largest tag of data, kFirstDataTag + 2^b - 1 = 2^b + 1, is at most MPI_TAG_UB. With
// the smallest MPI_TAG_UB that the standard allows, 32767, b is 14.
MpiTransport::MpiTransport(const hvdlite_mpi* mpi, hvdlite_mpi_comm comm, int rank,
                           std::vector<RankLocation> peers, std::unique_ptr<ControlPage> page,
                           std::unique_ptr<HostWindow> window, bool windows_everywhere,
                           Limits limits, int control_tag)
    : mpi_(mpi),
      comm_(comm),
      rank_(rank),
      peers_(std::move(peers)),
      page_(std::move(page)),
      window_(std::move(window)),
      windows_everywhere_(windows_everywhere),
      limits_(limits),
      control_tag_(control_tag),
      assemblers_(peers_.size()),
      lost_(peers_.size(), false),
      received_(peers_.size(), 0) {
  int bound = 0;
  check(mpi_->tag_upper_bound(comm_, &bound), rank_, "asking for MPI_TAG_UB");
  std::map<int, int> counts;  // by host
  for (int peer = 0; peer < size(); ++peer) {
    local_ranks_.push_back(counts[host_of(peer)]++);
    if (host_of(peer) == host_of(rank_)) neighbours_.push_back(peer);
  }
  if (window_ && neighbours_.size() > 1) {
    mail_.emplace(*window_, [this](int local_rank) {
      ring(neighbours_[static_cast<std::size_t>(local_rank)]);
    });
  }
  tag_bits_ = static_cast<int>(std::bit_width(static_cast<unsigned>(bound) - 1)) - 1;
  try {
    for (int i = 0; i < kPostedFrames; ++i) {
      spare_.push_back({std::vector<std::byte>(kFrameBytes)});
    }
    check(post_frame_receives(), rank_, kReceiving);
  } catch (...) {
    close();  // withdraws the receives that are posted
    throw;
  }
}

MpiTransport::~MpiTransport() {
  // Operations are in flight, and their memory may lie in the window. So the window must outlive this object.
  if (!close()) {
    [[maybe_unused]] const HostWindow* kept = window_.release();
  }
}

// The communicator is not freed, because that is collective, and a leaving rank must not wait for others. A second call, by the
// destructor, finds no frames any more. After MPI_Finalize nothing may be called, and MPI touches no memory.
//
// A cancelled receive ends soon, also if a frame has come for it; the frame is then lost. A request that has not ended after
// some tries may never end, and so its frame is given up (DeleteEmpty frees no list with frames). Sends are not cancelled.
bool MpiTransport::close() {
  if (mail_) mail_->close();
  int finalized = 0;
  if (mpi_->finalized(&finalized) != 0 || finalized != 0) return true;
  const auto has_ended = [this](Frame& frame, int most_tries) {
    int done = 0, source = 0, bytes = 0;
    for (int tries = 0; tries < most_tries && done == 0; ++tries) {
      if (mpi_->test(&frame.request, comm_, &done, &source, &bytes) != 0) break;
    }
    return done != 0;
  };
  incoming_.remove_if([&](Frame& frame) {
    const bool is_cancelled = mpi_->cancel(&frame.request) == 0;
    return has_ended(frame, is_cancelled ? 1000 : 1);
  });
  outgoing_.remove_if([&](Frame& frame) { return has_ended(frame, 1); });
  given_up_->splice(given_up_->end(), incoming_);
  given_up_->splice(given_up_->end(), outgoing_);
  spare_.clear();
  return posted_.size() == free_slots_.size();
}

// The text names the peer of the operation, which need not be the lost rank (`test` in mpi_abi.h). For calls without a peer the
// callers give this rank.
void MpiTransport::check(int error, int peer, const char* what) const {
  if (error == 0) return;
  refuse(mpi_, error, std::string(what) + " (" + describe_peer(peer) + "): ");
}

// --- data plane -----------------------------------------------------------------------------------------------------

// A slot that is used again keeps the capacity of its vector, so a program that repeats its operations allocates nothing here.
Ticket MpiTransport::take_slot(int peer, bool is_recv, std::size_t bytes) {
  if (free_slots_.empty()) {
    posted_.emplace_back();
    free_slots_.push_back(static_cast<std::uint32_t>(posted_.size() - 1));
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  Posted& posted = posted_[slot];
  posted.parts.clear();
  posted.next = 0;
  posted.peer = peer;
  posted.is_recv = is_recv;
  posted.large = bytes > kLargeBytes;
  return {std::uint64_t{slot} + 1};
}

std::size_t MpiTransport::limit_to(int peer) const {
  const std::size_t limit = host_of(peer) == host_of(rank_)
                                ? limits_.bytes
                                : std::min(limits_.bytes, limits_.remote_bytes);
  return std::clamp(limit, std::size_t{1}, std::size_t{INT_MAX});
}

// A message longer than limit_to() is sent in parts. Both sides cut it in the same way, because all ranks have the same
// limits_. The loop runs at least once, so a message of 0 bytes is sent too.
template <typename Post>
Ticket MpiTransport::post(int peer, bool is_recv, std::size_t bytes, Post post_part) {
  const Ticket ticket = take_slot(peer, is_recv, bytes);
  Posted& posted = posted_[ticket.id - 1];
  const std::size_t limit = limit_to(peer);
  for (std::size_t offset = 0; offset == 0 || offset < bytes; offset += limit) {
    const auto count = static_cast<int>(std::min(limit, bytes - offset));
    hvdlite_mpi_request request = {};
    check(post_part(offset, count, &request), peer, is_recv ? "receiving data" : "sending data");
    posted.parts.push_back(request);
  }
  return ticket;
}

Ticket MpiTransport::post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) {
  const auto* start = static_cast<const std::byte*>(data);
  const Ticket ticket =
      post(peer, false, bytes, [&](std::size_t offset, int count, hvdlite_mpi_request* request) {
        return mpi_->isend(start + offset, count, peer, kFirstDataTag + static_cast<int>(tag),
                           comm_, request);
      });
  bytes_sent_ += bytes;
  ring(peer);
  return ticket;
}

Ticket MpiTransport::post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) {
  auto* start = static_cast<std::byte*>(data);
  return post(peer, true, bytes, [&](std::size_t offset, int count, hvdlite_mpi_request* request) {
    return mpi_->irecv(start + offset, count, peer, kFirstDataTag + static_cast<int>(tag), comm_,
                       request);
  });
}

// Tests the parts one after the other, and remembers how many are complete. Each part that arrives is counted in received_, by
// which the failure detector sees that its sender lives.
bool MpiTransport::test(Ticket& ticket) {
  if (!ticket) return true;
  Posted& posted = posted_[ticket.id - 1];
  while (posted.next < posted.parts.size()) {
    int done = 0, source = 0, bytes = 0;
    check(mpi_->test(&posted.parts[posted.next], comm_, &done, &source, &bytes), posted.peer,
          posted.is_recv ? "receiving data" : "sending data");
    if (done == 0) return false;
    if (posted.is_recv) ++received_[static_cast<std::size_t>(posted.peer)];
    ++posted.next;
  }
  // The peer's send of a large message completes about now, and the peer may be asleep.
  if (posted.is_recv && posted.large) ring(posted.peer);
  ++activity_;
  free_slots_.push_back(static_cast<std::uint32_t>(ticket.id - 1));
  ticket = Ticket{};
  return true;
}

// --- control plane --------------------------------------------------------------------------------------------------

// If MPI refuses a frame, the message's frames before it are on the way. check() then throws, which makes this rank fail. It
// could not go on: the peer would take the next message for the rest of this one.
void MpiTransport::send_message(int peer, std::vector<std::byte> message) {
  if (has_mail_with(peer)) return mail_->send(local_rank_of(peer), std::move(message));
  const std::vector<std::byte> stream = in_frames(message);
  const std::size_t most = host_of(peer) == host_of(rank_) ? kFrameBytesInHost : kFrameBytes;
  // All frames are made before the first is sent. So a lack of memory leaves no half message behind.
  Frames frames;
  for (std::size_t offset = 0; offset < stream.size(); offset += most) {
    const auto start = stream.begin() + static_cast<std::ptrdiff_t>(offset);
    const auto count = static_cast<std::ptrdiff_t>(std::min(most, stream.size() - offset));
    frames.push_back({std::vector<std::byte>(start, start + count), {}, peer});
  }
  while (!frames.empty()) {
    outgoing_.splice(outgoing_.end(), frames, frames.begin());
    Frame& outgoing = outgoing_.back();
    check(mpi_->isend(outgoing.bytes.data(), static_cast<int>(outgoing.bytes.size()), peer,
                      control_tag_, comm_, &outgoing.request),
          peer, "sending a control message");
  }
  ring(peer);
  reap_outgoing();
}

// Each test takes time, and frames nearly always end in the order of sending. So a frame that has not ended ends the loop.
void MpiTransport::reap_outgoing() {
  while (!outgoing_.empty()) {
    int done = 0, source = 0, bytes = 0;
    Frame& first = outgoing_.front();
    check(mpi_->test(&first.request, comm_, &done, &source, &bytes), first.peer,
          "sending a control message");
    if (done == 0) return;
    outgoing_.pop_front();
  }
}

bool MpiTransport::messages_flushed() {
  reap_outgoing();
  return outgoing_.empty() && (!mail_ || mail_->flushed());
}

// Posts a receive for each spare frame. Returns 0, or MPI's error. After an error the next call tries again.
int MpiTransport::post_frame_receives() {
  while (!spare_.empty()) {
    Frame& next = spare_.front();
    const int error = mpi_->irecv(next.bytes.data(), static_cast<int>(kFrameBytes),
                                  mpi_->any_source, control_tag_, comm_, &next.request);
    if (error != 0) return error;
    incoming_.splice(incoming_.end(), spare_, spare_.begin());
  }
  return 0;
}

// The window first: looking there costs a load for each rank, and asking MPI costs a call.
bool MpiTransport::receive_message(int* source, std::vector<std::byte>* message, bool host_only) {
  if (mail_) {
    int local_rank = 0;
    if (mail_->receive(&local_rank, message)) {
      *source = neighbours_[static_cast<std::size_t>(local_rank)];
      return true;
    }
  }
  return !host_only && receive_by_mpi(source, message);
}

// Takes frames until one completes a message. A taken frame is spare again, and the next turn of the loop posts its receive.
bool MpiTransport::receive_by_mpi(int* source, std::vector<std::byte>* message) {
  if (!outgoing_.empty()) reap_outgoing();
  while (true) {
    // If MPI refuses a receive, messages that have arrived are returned before the error: one may tell the cause, such as a
    // rank's failure.
    const int refused = post_frame_receives();
    int done = 0, from = 0, bytes = 0;
    if (!incoming_.empty()) {
      check(mpi_->test(&incoming_.front().request, comm_, &done, &from, &bytes), rank_, kReceiving);
    }
    if (done == 0) {
      check(refused, rank_, kReceiving);
      return false;
    }
    spare_.splice(spare_.end(), incoming_, incoming_.begin());
    ++received_[static_cast<std::size_t>(from)];
    const std::span<const std::byte> frame(spare_.back().bytes);
    if (take_frame(from, frame.first(static_cast<std::size_t>(bytes)), message)) {
      *source = from;
      return true;
    }
  }
}

bool MpiTransport::take_frame(int source, std::span<const std::byte> frame,
                              std::vector<std::byte>* message) {
  try {
    return assemblers_[static_cast<std::size_t>(source)].take(frame, message);
  } catch (const Error& error) {
    throw Error(error.code(),
                describe_peer(source) + " sent an impossible message: " + error.what());
  }
}

// --- doorbell, life and death ---------------------------------------------------------------------------------------

Bell& MpiTransport::own_bell() { return page_ ? page_->bell(local_rank_of(rank_)) : private_bell_; }

void MpiTransport::ring(int peer) {
  if (peer == rank_) {
    own_bell().ring();
  } else if (reaches_by_bell(peer)) {
    page_->bell(local_rank_of(peer)).ring();
  }
}

bool MpiTransport::reaches_by_bell(int peer) const {
  return peer == rank_ || (page_ != nullptr && host_of(peer) == host_of(rank_));
}

std::uint64_t MpiTransport::received_from(int peer) const {
  const std::uint64_t by_mpi = received_[static_cast<std::size_t>(peer)];
  return has_mail_with(peer) ? by_mpi + mail_->received_from(local_rank_of(peer)) : by_mpi;
}

void MpiTransport::announce_failure(const std::string& cause) {
  if (page_) page_->announce_failure(cause);
}

void MpiTransport::announce_leaving() {
  if (page_) page_->announce_leaving();
}

// The page comes first: it needs no MPI, and knows of a death as soon as the kernel has dropped the lock.
bool MpiTransport::find_lost_peer(int* rank, std::string* how) {
  for (int peer = 0; page_ && peer < size(); ++peer) {
    const auto index = static_cast<std::size_t>(peer);
    if (peer == rank_ || lost_[index] || !reaches_by_bell(peer)) continue;
    *how = page_->why_lost(local_rank_of(peer));
    if (how->empty()) continue;
    lost_[index] = true;
    *rank = peer;
    return true;
  }
  return find_failed_by_mpi(rank, how);
}

// With fault tolerance, MPI knows the dead ranks of all hosts, through their sockets or the launcher.
bool MpiTransport::find_failed_by_mpi(int* rank, std::string* how) {
  if (mpi_->failed_rank == nullptr) return false;
  std::vector<int> known;
  for (int peer = 0; peer < size(); ++peer) {
    if (lost_[static_cast<std::size_t>(peer)]) known.push_back(peer);
  }
  const int failed = mpi_->failed_rank(comm_, known.data(), static_cast<int>(known.size()));
  if (failed < 0 || failed == rank_) return false;
  lost_[static_cast<std::size_t>(failed)] = true;
  *rank = failed;
  *how =
      "ended without telling the other ranks, as MPI reports: it was killed by a signal, called "
      "os._exit, or its host is down";
  return true;
}

std::string MpiTransport::describe_peer(int peer) const {
  const RankLocation& who = peers_[static_cast<std::size_t>(peer)];
  if (who.pid == 0) return "rank " + std::to_string(peer);
  return base::describe_rank(peer, who.host, who.pid);
}

int MpiTransport::process_of(int peer) const {
  return reaches_by_bell(peer) ? peers_[static_cast<std::size_t>(peer)].pid : 0;
}

}  // namespace hvdlite::transport
