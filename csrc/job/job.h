// The processes of a job while there is no engine: in init(), and from shutdown() to the end of MPI.
// Thread: one at a time (job_driver.h). Owns: a transport of its own, the failure detector, and the current exchange. Blocks:
// never. Throws: pass() throws the failure that stops the exchange: Error(PeerLost, Timeout, System, Internal).
//
// A collective of MPI waits for ever for a process that has failed. An exchange of Job consists of control messages instead,
// and while it lasts this process *looks* again and again (look()): it reads the messages that have come, checks the processes
// of its own host, and expects heartbeats from other hosts. The first exchange introduces the ranks to each other; until it has
// ended only their numbers are known.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time_source.h"
#include "engine/membership/failure_detector.h"
#include "job/exchange.h"
#include "job/neighbours.h"
#include "transport/transport.h"

namespace hvdlite::job {

// What each rank tells the others about itself.
struct Card {
  std::string host;  // its name, for people
  int pid = 0;
  std::string system;             // equal for processes that see each other's process ids
  bool sends_heartbeats = false;  // sends heartbeats while its program computes
};

class Job : private engine::FailureDetector::Facts {
 public:
  using Time = base::Clock::time_point;
  using Actions = engine::FailureDetector::Actions;
  using WatchNeighbours = std::function<std::unique_ptr<Neighbours>(const std::vector<int>& pids)>;

  Job(std::unique_ptr<transport::Transport> transport, base::TimeSource time, Card mine,
      WatchNeighbours watch);

  // Seconds; 0: no limit. patience: how long an exchange waits for ranks that are stopped or whose host is silent; a bounded
  // exchange waits for any rank only that long. silence: a host from which nothing comes for this time is lost.
  struct Limits {
    double patience = 0;
    double silence = 0;
  };
  void set_limits(Limits limits);

  // Begins an exchange; the exchange before it must have ended. bounded: `patience` also limits the wait for ranks that run but
  // have not sent their value.
  void begin(Bytes mine, bool bounded);
  // Looks once. Returns true if the exchange has ended.
  bool pass();
  std::vector<Bytes> values() const { return exchange_.values(); }

  // The first part of pass(): one look. Call it between exchanges, too.
  void look();
  // Does look() send heartbeats, on which ranks of other hosts rely? Then call it at least once in each look_interval().
  bool sends_heartbeats() const { return failures_.keeps_in_touch(); }
  base::microseconds look_interval() const;

  // Tells the other ranks, which wait, why this process fails. Returns the text that they get.
  std::string tell(const std::string& cause);
  // Returns true if the text has left this process, or if it cannot leave it any more.
  bool told();

  // "rank 3 (host a, pid 17)"
  const std::string& describe(int rank) const { return failures_.roster().describe(rank); }
  bool lost() const { return failure_.code != base::ErrorCode::kOk; }
  // Kills the stopped processes of this host. Call it when the job is over: otherwise its launcher may wait for these
  // processes.
  void kill_the_stopped();

 private:
  // Runs a step. If it throws, this process fails.
  template <typename Step>
  void guard(Step step);
  void receive();
  void hear(int source, const std::vector<std::byte>& bytes);
  void introduce();
  void send(const Exchange::Sends& sends);
  void apply(const Actions& actions);
  void send_control(int to, const engine::Message& message);
  void tell_failure(const std::string& cause, const std::vector<int>& ranks);
  double shortest_silence() const;
  void mind_patience(Time now);
  std::string awaited() const;
  // What the failure detector asks.
  bool find_lost(int* rank, std::string* how) override;
  std::uint64_t received_from(int rank) override { return transport_->received_from(rank); }

  std::unique_ptr<transport::Transport> transport_;
  base::TimeSource time_;
  WatchNeighbours watch_;
  std::unique_ptr<Neighbours> neighbours_;  // null until the ranks know each other
  bool all_send_heartbeats_ = false;
  engine::FailureDetector failures_;
  std::vector<Time> ended_at_;  // when each rank was first seen to have ended
  Exchange exchange_;
  bool under_way_ = false;
  bool bounded_ = true;
  Time began_;
  Limits limits_;
  base::Status failure_;
  Time failed_at_;
};

}  // namespace hvdlite::job
