// The steps of a link, and the cause of each change:
//
//    kOpening ──► kCards         this rank has tried to open a GPU, two streams and, if its knob permits NCCL, NCCL
//    kCards ──► kInvitation      this rank has the cards of all members, and the choice is NCCL
//    kInvitation ──► kJoining    this rank has NCCL's unique id
//    kJoining ──► kReporting     this rank has the verdict, and has sent its report
//    kReporting ──► kDone        this rank has sent and received all its reports and verdicts
//
//    kCards ──► kDone            this rank has all cards, and the choice is host memory, or to refuse the set's operations
//    kInvitation ──► kDone       member 0 has no unique id: the link falls back, as after a verdict "not up"
//
// A card tells a member's knobs, its GPU and its version of NCCL. A report tells whether a member's communicator is up, and the
// verdict is member 0's message that tells whether all are up. The link's first tag is for the allgather of the cards, the
// second for the broadcast of the invitation, and the third for reports and verdicts, on two channels: one for reports and one
// for verdicts.
//
// An example: NCCL fails on member 2, while the communicators of the other members still wait for member 2.
//
//    member 0                              member 1                           member 2
//                                                                             failed; report: "not up", and why ──► 0
//    verdict: member 2's report ──► 1, 2
//    aborts its communicator               has the verdict, aborts            has the verdict
//                                          report: "not up" ──► 0
//    has both reports: falls back          falls back                         falls back
//
// Why a rank does not use its communicator before the verdict, even if the communicator is up: if the communicator of another
// member fails, that member takes no part in NCCL's operations. A kernel that waits for that member would never end.
//
// If the members have come to kJoining, each of them but member 0 sends one report, also if its communicator has failed or if
// it has the verdict already. So the receives that member 0 has posted for the reports complete in every case, and no message
// of the link is under way in kDone. This is why the link may then be destroyed.
//
// All members reach the same route and the same text of the reason, because they compute both from the cards, the invitation
// and the verdict, which are equal on all members.
//
// No call of advance() waits for another rank: advance() tests messages and asks the communicator, and returns false if nothing
// has happened. While the link comes up, the caller gets no exception if NCCL fails. The error becomes a text in a card, an
// invitation or a report.
#include "engine/execution/gpu/device_link.h"

#include <algorithm>

namespace hvdlite::engine {

using base::Error;
using base::LogLevel;

namespace {

// If the communicator is not up this many seconds after join(), the log says so.
constexpr double kLongSeconds = 30;
constexpr int kReportChannel = 0;
constexpr int kVerdictChannel = 1;

}  // namespace

DeviceLink::DeviceLink(const DeviceContext& context, std::shared_ptr<const ProcessSet> set,
                       const std::array<std::uint32_t, kTags>& tags, int home)
    : context_(context), set_(std::move(set)), tags_(tags), home_wanted_(home) {}

// A rank that has submitted a GPU operation has already opened its GPU. So open_home() can fail to open a GPU only on a joined
// rank.
void DeviceLink::open_home() {
  int gpu = home_wanted_;
  // The card has the knobs even if this rank can open no GPU.
  card_.knob = knob_of(context_.shared.config.gpu_route);
  card_.float32_sums = context_.shared.config.nccl_float32_sums ? 1 : 0;
  try {
    if (gpu < 0) {
      const int local = context_.transport.local_rank_of(context_.transport.rank());
      gpu = local % context_.shared.devices.driver().devices();
    }
    home_ = &context_.shared.devices.device(gpu);
    stream_.emplace(home_->gpu);
    return_stream_.emplace(home_->gpu);
  } catch (const Error& error) {
    if (home_ != nullptr) throw;  // the GPU is there, but cannot be used
    put_text(card_.why, error.what());
    return;
  }
  card_.has_gpu = 1;
  card_.gpu = home_->gpu->uuid();
  // The members do not choose NCCL if one of them demands the staged route.
  if (card_.knob == RouteCard::kStaged) return;
  try {
    nccl_ = context_.shared.devices.nccl();
    card_.nccl_version = nccl_->version();
  } catch (const Error& error) {
    put_text(card_.why, error.what());
  }
}

collectives::Comm DeviceLink::comm_for(std::size_t tag) const {
  return {context_.transport, set_->members, set_->index, tags_[tag], set_->id};
}

void DeviceLink::exchange_cards() {
  cards_.resize(set_->members->size());
  collectives::AllgathervArgs args;
  args.input = &card_;
  args.output = cards_.data();
  args.bytes.assign(cards_.size(), sizeof(RouteCard));
  collective_ = collectives::start_allgatherv(comm_for(0), std::move(args), context_.selection);
}

bool DeviceLink::advance() {
  switch (step_) {
    case Step::kOpening:
      open_home();
      exchange_cards();
      step_ = Step::kCards;
      return true;
    case Step::kCards:
      if (!collective_->advance()) return false;
      choice_ = choose_route(cards_, *set_->members);
      if (choice_.route == Route::kNccl) {
        invite();
      } else {
        settle();
      }
      return true;
    case Step::kInvitation:
      if (!collective_->advance()) return false;
      if (invitation_.ok == 0) {
        fall_back(get_text(invitation_.why));
      } else {
        join();
      }
      return true;
    case Step::kJoining: {
      bool moved = poll_own();
      moved = poll_reports() || moved;
      return poll_verdict() || moved;
    }
    case Step::kReporting: {
      const auto complete = [&](transport::Ticket& ticket) {
        return context_.transport.test(ticket);
      };
      if (!std::ranges::all_of(leaving_, complete) || !std::ranges::all_of(arriving_, complete)) {
        return false;
      }
      if (verdict_.ok != 0) {
        settle();
      } else {
        fall_back(get_text(verdict_.why));
      }
      return true;
    }
    case Step::kDone:
      break;
  }
  return false;
}

// If member 0 gets no unique id, the invitation carries the error's text to all members.
void DeviceLink::invite() {
  if (rank() == 0) {
    try {
      invitation_.id = nccl_->unique_id();
      invitation_.ok = 1;
    } catch (const Error& error) {
      put_text(invitation_.why,
               context_.transport.describe_peer((*set_->members)[0]) + ": " + error.what());
    }
  }
  collectives::BroadcastArgs args;
  args.data = &invitation_;
  args.bytes = sizeof(invitation_);
  collective_ = collectives::start_broadcast(comm_for(1), args, context_.selection);
  step_ = Step::kInvitation;
}

// Posts the receives before it makes the communicator, because the other members send their messages even if this rank's
// communicator fails at once.
void DeviceLink::join() {
  step_ = Step::kJoining;
  since_ = context_.shared.time.now();
  collective_.reset();
  collectives::Comm comm = comm_for(2);
  if (rank() == 0) {
    reports_.resize(set_->members->size());
    arriving_.resize(reports_.size());
    for (int peer = 1; peer < size(); ++peer) {
      const auto place = static_cast<std::size_t>(peer);
      arriving_[place] = comm.recv(peer, kReportChannel, &reports_[place], sizeof(Report));
    }
  } else {
    arriving_.push_back(comm.recv(0, kVerdictChannel, &verdict_, sizeof(verdict_)));
  }
  try {
    comm_ =
        std::make_unique<device::NcclComm>(nccl_, home_->gpu, invitation_.id, size(), set_->index);
  } catch (const Error& error) {
    report(false, error.what());
  }
}

// Reports once whether this rank's communicator is up.
void DeviceLink::report(bool ok, const std::string& why) {
  own_known_ = true;
  if (!ok) comm_.reset();  // aborts it
  mine_.ok = ok ? 1 : 0;
  put_text(mine_.why,
           ok ? std::string()
              : context_.transport.describe_peer(context_.transport.rank()) + ": " + why);
  if (rank() == 0) {
    reports_[0] = mine_;
  } else {
    leaving_.push_back(comm_for(2).send(0, kReportChannel, &mine_, sizeof(mine_)));
  }
}

// hvdlite sets no limit for the time until the communicator is up. After kLongSeconds the log names a remedy, once.
bool DeviceLink::poll_own() {
  if (own_known_) return false;
  try {
    if (comm_->busy()) {
      if (!complained_ &&
          base::seconds_between(since_, context_.shared.time.now()) > kLongSeconds) {
        complained_ = true;
        say(LogLevel::kWarning,
            "NCCL's communicator is still not up after " + std::to_string(int(kLongSeconds)) +
                " seconds; NCCL_DEBUG=INFO shows what it waits for, and HVDLITE_GPU_ROUTE=staged "
                "makes hvdlite move tensors without NCCL");
      }
      return false;
    }
    report(true, "");
  } catch (const Error& error) {
    report(false, error.what());
  }
  return true;
}

// On member 0: the verdict is known when all communicators are up, or one has failed. If member 0 knows of several failures,
// the verdict has the text of the failed member with the lowest index.
bool DeviceLink::poll_reports() {
  if (rank() != 0) return false;
  bool all = own_known_;
  const Report* failed = own_known_ && mine_.ok == 0 ? &mine_ : nullptr;
  for (std::size_t peer = 1; peer < reports_.size(); ++peer) {
    const bool here = context_.transport.test(arriving_[peer]);
    all = all && here;
    if (here && reports_[peer].ok == 0 && failed == nullptr) failed = &reports_[peer];
  }
  if (!all && failed == nullptr) return false;
  verdict_ = failed != nullptr ? *failed : mine_;
  collectives::Comm comm = comm_for(2);
  for (int peer = 1; peer < size(); ++peer) {
    leaving_.push_back(comm.send(peer, kVerdictChannel, &verdict_, sizeof(verdict_)));
  }
  verdict_known_ = true;
  return true;
}

bool DeviceLink::poll_verdict() {
  if (rank() != 0) verdict_known_ = context_.transport.test(arriving_.front());
  if (!verdict_known_) return false;
  if (!own_known_) report(false, "another rank's communicator failed");
  // This rank's communicator may be up although that of another member has failed. In that case this rank ends its own
  // communicator.
  if (verdict_.ok == 0) comm_.reset();
  step_ = Step::kReporting;
  return true;
}

// Only member 0 logs the route. A refused route is not logged, because the error of each operation says why the route was
// refused.
void DeviceLink::settle() {
  collective_.reset();
  step_ = Step::kDone;
  if (route() == Route::kRefused || rank() != 0) return;
  const std::string gpu = home_ != nullptr ? " (" + home_->gpu->name() + " here)" : "";
  say(choice_.falls_back ? LogLevel::kWarning : LogLevel::kInfo,
      route() == Route::kNccl ? "GPU operations go through " + why() + gpu
                              : "GPU operations go through host memory" + gpu + ": " + why());
}

// The members chose NCCL, but there is no unique id, or a communicator did not come up. All members see all knobs in the cards:
// if the knob of one member demands NCCL, all members refuse the operations.
void DeviceLink::fall_back(const std::string& why) {
  const bool demanded = std::ranges::any_of(
      cards_, [](const RouteCard& card) { return card.knob == RouteCard::kNccl; });
  choice_.falls_back = true;
  choice_.route = demanded ? Route::kRefused : Route::kStaged;
  choice_.why = "NCCL failed to start on " + why + (demanded ? kWithoutNccl : "");
  settle();
}

void DeviceLink::say(LogLevel level, const std::string& text) const {
  context_.shared.log.write(level, "device",
                            "process set " + std::to_string(set_->id.id) + ": " + text);
}

// A stream of GPU `gpu` waits for `event`, and the new event is recorded in that stream. The host does not wait.
device::EventPtr DeviceLink::relay(const device::EventPtr& event, int gpu) {
  device::Device& device = context_.shared.devices.device(gpu);
  const auto found = relays_.try_emplace(gpu, device.gpu).first;
  event->order(found->second.get(), *device.gpu);
  return device.gpu->record(found->second.get());
}

void DeviceLink::finish() {
  if (comm_) comm_->finish();
  comm_.reset();
}

void DeviceLink::abort() {
  if (comm_) comm_->abort();
}

// The return stream first waits for the work in stream(). So an event in the return stream comes after the work in both
// streams.
device::EventPtr DeviceLink::last_event() const {
  if (!return_stream_) return nullptr;
  try {
    home_->gpu->record(stream())->order(return_stream());
    return home_->gpu->record(return_stream());
  } catch (const Error&) {
    return nullptr;
  }
}

}  // namespace hvdlite::engine
