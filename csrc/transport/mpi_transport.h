// The Transport over MPI's point-to-point messages, through the function table of a shim. Inside a host control messages go
// through the host's window, if it has one.
// Thread: the holder of the progress token, except for the doorbell. Owns: its requests, its message buffers, the control page
// and the window; the communicator is never freed. Blocks: wait() only. Throws: Error(PeerLost, System) with MPI's own text,
// Error(Internal) for a damaged message.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/bell.h"
#include "transport/control_page.h"
#include "transport/frames.h"
#include "transport/host_mail.h"
#include "transport/host_window.h"
#include "transport/mpi_abi.h"
#include "transport/transport.h"

namespace hvdlite::transport {

class MpiTransport : public Transport {
 public:
  struct RankLocation {
    std::string host;
    int pid = 0;     // 0: host and pid are not known
    int leader = 0;  // the lowest rank of its host
  };
  // The largest messages that MPI sends in one part.
  struct Limits {
    std::size_t bytes = std::size_t{1} << 30;
    std::size_t remote_bytes = std::size_t{32} << 10;  // to another host
  };
  // The tags of control messages: one for the transport of an engine, and one for the transport of a Job (job/job.h). Both
  // transports may use one communicator.
  static constexpr int kEngineTag = 0, kJobTag = 1;
  // comm: only this transport, and one transport with the other control_tag, may use it. page, window: null if this host has
  // none. windows_everywhere: do all hosts have a window?
  MpiTransport(const hvdlite_mpi* mpi, hvdlite_mpi_comm comm, int rank,
               std::vector<RankLocation> peers, std::unique_ptr<ControlPage> page,
               std::unique_ptr<HostWindow> window, bool windows_everywhere, Limits limits,
               int control_tag);
  ~MpiTransport() override;

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  int tag_bits() const override { return tag_bits_; }

  Ticket post_send(int peer, std::uint32_t tag, const void* data, std::size_t bytes) override;
  Ticket post_recv(int peer, std::uint32_t tag, void* data, std::size_t bytes) override;
  bool test(Ticket& ticket) override;

  void send_message(int peer, std::vector<std::byte> message) override;
  bool receive_message(int* source, std::vector<std::byte>* message, bool host_only) override;
  bool messages_flushed() override;

  std::uint32_t listen() override { return own_bell().listen(); }
  void unlisten() override { own_bell().unlisten(); }
  void wait(std::uint32_t seen, std::chrono::microseconds limit) override {
    own_bell().wait(seen, limit);
  }
  void ring(int peer) override;
  bool reaches_by_bell(int peer) const override;

  int host_of(int peer) const override { return peers_[static_cast<std::size_t>(peer)].leader; }
  int local_rank_of(int peer) const override {
    return local_ranks_[static_cast<std::size_t>(peer)];
  }
  HostWindow* window() override { return window_.get(); }
  bool windows_everywhere() override { return windows_everywhere_; }

  bool close() override;

  void announce_failure(const std::string& cause) override;
  void announce_leaving() override;
  bool find_lost_peer(int* rank, std::string* how) override;
  std::uint64_t received_from(int peer) const override;
  std::string describe_peer(int peer) const override;
  int process_of(int peer) const override;

 private:
  // A posted send or receive: as many MPI requests as its size needs.
  struct Posted {
    std::vector<hvdlite_mpi_request> parts;
    std::size_t next = 0;  // parts before this one are complete
    int peer = -1;
    bool is_recv = false;
    bool large = false;
  };
  // A frame of a control message. MPI may use its memory until the request has ended.
  struct Frame {
    std::vector<std::byte> bytes;
    hvdlite_mpi_request request = {};
    int peer = 0;  // of a frame to be sent
  };
  using Frames = std::list<Frame>;
  struct DeleteEmpty {
    void operator()(Frames* frames) const {
      if (frames->empty()) delete frames;
    }
  };

  std::size_t limit_to(int peer) const;
  Ticket take_slot(int peer, bool is_recv, std::size_t bytes);
  template <typename Post>
  Ticket post(int peer, bool is_recv, std::size_t bytes, Post post_part);
  void check(int error, int peer, const char* what) const;
  int post_frame_receives();
  bool take_frame(int source, std::span<const std::byte> frame, std::vector<std::byte>* message);
  void reap_outgoing();
  bool has_mail_with(int peer) const { return mail_ && host_of(peer) == host_of(rank_); }
  bool receive_by_mpi(int* source, std::vector<std::byte>* message);
  Bell& own_bell();
  bool find_failed_by_mpi(int* rank, std::string* how);

  const hvdlite_mpi* mpi_;
  hvdlite_mpi_comm comm_;
  int rank_;
  std::vector<RankLocation> peers_;
  std::vector<int> local_ranks_;  // by rank
  std::unique_ptr<ControlPage> page_;
  Bell private_bell_ = {};  // used if there is no page; for this process alone
  std::unique_ptr<HostWindow> window_;
  std::vector<int> neighbours_;   // the ranks of this host by their place there
  std::optional<HostMail> mail_;  // if they share a window
  bool windows_everywhere_;
  Limits limits_;
  const int control_tag_;
  int tag_bits_ = 0;
  std::vector<Posted> posted_;
  std::vector<std::uint32_t> free_slots_;
  Frames outgoing_;
  Frames incoming_;  // in the order of posting, which is the order of arrival
  Frames spare_;     // not posted
  std::unique_ptr<Frames, DeleteEmpty> given_up_{new Frames};  // MPI may use them for ever
  std::vector<FrameAssembler> assemblers_;                     // by peer
  std::vector<bool> lost_;
  std::vector<std::uint64_t> received_;  // messages, frames and parts, by peer
};

}  // namespace hvdlite::transport
