// How the GPU operations of one process set get from rank to rank: this rank's GPU for the set, its streams, and either a
// communicator of NCCL or the knowledge that the data go through host memory.
// Thread: the holder of the progress token. Owns: the streams and the communicator. Blocks: never. Throws: what Transport and the
// GPU's driver throw; then it must be kept, as the transport may still touch its memory.
//
// All members make theirs at the same place in the set's order, at its first GPU operation, those that have joined too. It comes
// up beside everything else, by messages under tags of its own:
//
//   all       cards exchanged: has it a GPU, which, which NCCL, what do the knobs say      -> all choose one route alike
//   member 0  NCCL's unique id, or why there is none                                       -> all
//   all       ncclCommInitRankConfig without blocking; each polls its own
//   all       report to member 0: it is up, or why not      member 0's verdict             -> all
//
// A rank whose communicator fails reports so at once, and the verdict reaches the others while theirs still wait for it: they
// abort and report. So each sends one report and gets one verdict, whatever happens.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/time_source.h"
#include "collectives/select.h"
#include "device/devices.h"
#include "engine/execution/gpu/device_route.h"
#include "engine/model/request.h"

namespace hvdlite::engine {

// What all links of an engine have in common, which outlives them.
struct LinkContext {
  transport::Transport& transport;
  device::Devices& devices;
  const base::Config& config;
  const base::Logger& log;
  base::TimeSource time;
  const collectives::Selection& selection;  // of algorithms that need messages only
};

class DeviceLink {
 public:
  static constexpr std::size_t kTags = 3;
  enum class Route { kComingUp, kNccl, kStaged, kRefused };

  // home: the GPU of this rank's first operation on the set; -1: it has none, and takes one by its place on the host. It is
  // opened by the first advance.
  DeviceLink(const LinkContext& context, std::shared_ptr<const ProcessSet> set,
             const std::array<std::uint32_t, kTags>& tags, int home);

  // While it comes up: true if anything happened.
  bool advance();
  Route route() const { return route_; }
  const std::string& why_refused() const { return why_refused_; }

  // Null: this rank has no GPU. It has joined then, and takes part with host memory.
  device::Device* home() const { return home_; }
  device::Device& device(int gpu) { return context_.devices.device(gpu); }
  device::cuda::Stream stream() const { return stream_->get(); }
  // For what comes back from host memory, so that it need not wait behind inputs that are not ready.
  device::cuda::Stream return_stream() const { return return_stream_->get(); }
  // An event of another GPU of this rank that comes after `event`: whoever waits for it gives streams of that GPU.
  device::EventPtr relay(const device::EventPtr& event, int gpu);

  bool float32_sums() const { return choice_.float32_sums; }
  device::NcclComm& comm() const { return *comm_; }
  // May the communicator not be called yet? Throws its asynchronous error.
  bool busy() const { return comm_ && comm_->busy(); }

  // The end: in good order, or so that kernels which wait for a lost peer end.
  void finish();
  void abort();
  // After all that was given to both streams. Null if there is no GPU, or it gives no more events.
  device::EventPtr last_event() const;

 private:
  enum class Step { kOpening, kCards, kInvitation, kJoining, kReporting, kDone };
  // What crosses after the cards.
  struct Invitation {
    std::int32_t ok = 0;
    device::nccl::UniqueId id;
    std::array<char, 256> why{};
  };
  struct Report {
    std::int32_t ok = 0;
    std::array<char, 256> why{};
  };

  void open_home();
  collectives::Comm comm_for(std::size_t tag) const;
  int rank() const { return set_->index; }
  int size() const { return static_cast<int>(set_->members->size()); }
  void exchange_cards();
  void invite();
  void join();
  void report(bool ok, const std::string& why);
  bool poll_own();
  bool poll_reports();
  bool poll_verdict();
  void settle(Route route, const std::string& why);
  void fall_back(const std::string& why);
  void say(base::LogLevel level, const std::string& text) const;

  const LinkContext& context_;
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
  Route route_ = Route::kComingUp;
  RouteChoice choice_;
  std::string why_refused_;
  base::Clock::time_point since_ = context_.time.now();
  bool complained_ = false;

  RouteCard card_;
  std::vector<RouteCard> cards_;
  Invitation invitation_;
  std::unique_ptr<collectives::Collective> collective_;  // of the first two steps
  // Of the last two: mine, and, on member 0, those of all; tickets of the messages on their way.
  bool own_known_ = false;
  bool verdict_known_ = false;
  bool verdict_sent_ = false;
  Report mine_;
  Report verdict_;
  std::vector<Report> reports_;
  std::vector<transport::Ticket> arriving_;
  std::vector<transport::Ticket> leaving_;
};

}  // namespace hvdlite::engine
