// What one process set needs to move GPU tensors between ranks: this rank's home GPU for the set, the streams on this GPU, and
// the route, which leads through an NCCL communicator or through host memory.
// Thread: the holder of the progress token. Owns: the streams and the communicator. Blocks: only the first advance(), which
// opens NCCL and, on a joined rank, a GPU. Throws: what Transport, the GPU's driver and, in busy(), NCCL throw. After an
// exception the owner must keep the link, because the transport may still touch the link's memory.
//
// All members, joined ones too, make their links at the set's first GPU operation, which has the same place in the order on all
// members. The links come up through messages, which have tags of their own, while other operations continue:
//
//   all       exchange cards: is there a GPU, which GPU and NCCL, which knobs              -> all choose the same route
// and if that route is NCCL:
//   member 0  sends NCCL's unique id, or why there is none                                 -> all
//   all       call ncclCommInitRankConfig without blocking; each polls its own communicator
//   all       report to member 0: this rank's communicator is up, or why not
//   member 0  sends the verdict: all communicators are up, or why not                      -> all
//
// A rank whose communicator fails reports the failure at once. The verdict reaches the other ranks while their communicators
// still wait for that rank. After the verdict the other ranks abort their communicators and report. So in every case each rank
// but member 0 sends one report and gets one verdict.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/select.h"
#include "engine/execution/fusion_buffer.h"
#include "engine/execution/gpu/device_route.h"
#include "engine/execution/gpu/device_watcher.h"
#include "engine/intake/shared_state.h"

namespace hvdlite::engine {

// Objects that the GPU lanes of an engine share. These objects must outlive the lanes.
struct DeviceContext {
  transport::Transport& transport;
  SharedState& shared;
  const collectives::Selection& selection;  // forces no algorithm
  FusionBufferPool& pool;
  DeviceWatcher& watcher;
};

class DeviceLink {
 public:
  static constexpr std::size_t kTags = 3;

  // home: the GPU of this rank's first GPU operation on the set. -1: the rank has joined before it submitted such an operation;
  // in this case the first advance() opens the GPU whose number is the rank's local rank modulo the number of GPUs.
  DeviceLink(const DeviceContext& context, std::shared_ptr<const ProcessSet> set,
             const std::array<std::uint32_t, kTags>& tags, int home);

  // Brings the link up, step by step. Returns true if anything happened.
  bool advance();
  const DeviceContext& context() const { return context_; }
  const ProcessSet& set() const { return *set_; }
  bool is_coming_up() const { return step_ != Step::kDone; }
  // Valid when the link has come up. why(): as RouteChoice::why.
  Route route() const { return choice_.route; }
  const std::string& why() const { return choice_.why; }

  // Null: this rank has no GPU. Such a rank has joined, and takes part with host memory.
  device::Device* home() const { return home_; }
  device::cuda::Stream stream() const { return stream_->get(); }
  // The stream for copies from host memory to the GPU. It is a separate stream so that these copies do not wait for inputs of
  // later operations.
  device::cuda::Stream return_stream() const { return return_stream_->get(); }
  // Returns a new event that belongs to this rank's GPU `gpu`, for callers whose streams belong to this GPU. The new event
  // comes after `event`.
  device::EventPtr relay(const device::EventPtr& event, int gpu);

  bool float32_sums() const { return choice_.float32_sums; }
  device::NcclComm& comm() const { return *comm_; }
  // Is the communicator still busy with earlier calls? Throws the communicator's asynchronous error, if there is one.
  bool busy() const { return comm_ && comm_->busy(); }

  // finish() and abort() end the link; abort() also ends kernels that wait for a lost rank.
  void finish();
  void abort();
  // An event after all work in both streams. Null if there is no GPU, or if an event cannot be recorded.
  device::EventPtr last_event() const;

 private:
  enum class Step { kOpening, kCards, kInvitation, kJoining, kReporting, kDone };
  // Member 0's message to the other members after the exchange of cards.
  struct Invitation {
    std::int32_t ok = 0;  // 0: there is no id, and `why` has the reason
    device::nccl::UniqueId id;
    std::array<char, 256> why{};
  };
  // A rank's report to member 0; also member 0's verdict.
  struct Report {
    std::int32_t ok = 0;  // 1: the communicator is up; 0: `why` has the reason
    std::array<char, 256> why{};
  };

  void open_home();
  collectives::Comm comm_for(std::size_t tag) const;
  int rank() const { return set_->index; }
  int size() const { return set_->size(); }
  void exchange_cards();
  void invite();
  void join();
  void report(bool ok, const std::string& why);
  bool poll_own();
  bool poll_reports();
  bool poll_verdict();
  void settle();
  void fall_back(const std::string& why);
  void say(base::LogLevel level, const std::string& text) const;

  const DeviceContext& context_;
  const std::shared_ptr<const ProcessSet> set_;
  const std::array<std::uint32_t, kTags> tags_;
  const int home_wanted_;

  device::Device* home_ = nullptr;
  std::optional<device::OwnStream> stream_;
  std::optional<device::OwnStream> return_stream_;
  std::map<int, device::OwnStream> relays_;  // by GPU
  device::NcclPtr nccl_;
  std::unique_ptr<device::NcclComm> comm_;

  Step step_ = Step::kOpening;
  RouteChoice choice_;
  base::Clock::time_point since_;  // when join() was called
  bool complained_ = false;

  RouteCard card_;
  std::vector<RouteCard> cards_;
  Invitation invitation_;
  std::unique_ptr<collectives::Collective> collective_;  // of the steps kCards and kInvitation
  // The state of the steps kJoining and kReporting. own_known_: this rank's report is known (mine_). reports_: on member 0, the
  // reports of all members. arriving_, leaving_: the tickets of this rank's receives and sends.
  bool own_known_ = false;
  bool verdict_known_ = false;
  Report mine_;
  Report verdict_;
  std::vector<Report> reports_;
  std::vector<transport::Ticket> arriving_;
  std::vector<transport::Ticket> leaving_;
};

}  // namespace hvdlite::engine
