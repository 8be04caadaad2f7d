// How the ranks of a job join, in open_mpi(). Each step is collective over the job or over a host. So all ranks, also those
// that cannot share memory, make the same steps in the same order:
//
//    1  duplicate the communicator           so no receive of hvdlite matches a message of the program; not with takes_comm
//    2  split it by host, as MPI sees hosts  MPI_Comm_split_type
//    3  all introduce themselves             host name, process id, kernel's boot id
//    4  merge hosts that MPI took for two    only if the introductions say so; the host communicator is then made anew
//    5  control page, window, result memory  share(): all ranks of a host have it, or none has
//    6  free the host communicator           no later step needs it
//    7  ask which ranks have a window        hierarchical collectives need one on every host
//
// The result of share() must be the same on all ranks of a host. Otherwise a rank could wait in shared memory for a rank that
// sends messages, and would wait for ever. So each attempt ends with an allgather of the problems, and if one rank has a
// problem, all ranks drop their memory again. An attempt with one kind of memory:
//
//    first rank of the host              other ranks of the host
//    create the memory                   -
//    MPI_Bcast of the Address            MPI_Bcast; if the first rank made no memory, they try nothing
//    make the object over the memory     open the memory, make the object over it
//    MPI_Allgather of the problems       MPI_Allgather; no problem on any rank: done
//    unlink the name                     -
//
// An example: the machine has no memory for rank 2's part of the window. Rank 2's make() throws, ranks 0 and 1 have their
// windows. All three read rank 2's text, drop what they have, and try the next kind. If the last kind fails too, the texts of
// both attempts go into one line of the log, and the ranks exchange tensors by MPI's messages.
//
// If MPI itself fails, check() throws. From step 2 on, the destructor of Revoking then revokes the communicators, so that the
// other ranks, which may wait in the same collective, get an error as well (only with fault tolerance).
#include "transport/mpi_env.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "transport/control_page.h"
#include "transport/host_window.h"
#include "transport/mpi_library.h"
#include "transport/mpi_transport.h"
#include "transport/result_memory.h"
#include "transport/shared_memory.h"

namespace hvdlite::transport {

using base::Error;
using base::ErrorCode;

namespace {

// A peer that polls on another processor usually answers within this time. If it does not answer, it may have to wait for this
// rank's processor, although there are enough processors. Then it can answer only when this rank stops polling.
constexpr base::microseconds kSpin{10};
constexpr base::microseconds kYield{40};
constexpr base::microseconds kYieldWhereShared{75};
constexpr double kMostSpin = 1e12;  // microseconds: 11 days

// What each rank tells all others in init().
struct Introduction {
  int leader = 0;  // the lowest rank of its host, as MPI reports it
  int pid = 0;
  char host[64] = {};
  char boot[64] = {};  // of its kernel; "" if that is kept secret
};

// The boot id is a random number that the kernel makes at its start. Two machines with the same host name have different ones.
Introduction introduce(int leader) {
  Introduction me;
  me.leader = leader;
  me.pid = getpid();
  gethostname(me.host, sizeof(me.host) - 1);
  base::first_line_of("/proc/sys/kernel/random/boot_id").copy(me.boot, sizeof(me.boot) - 1);
  return me;
}

// The ranks of one host, while they join.
struct HostRanks {
  const hvdlite_mpi* mpi;
  hvdlite_mpi_comm comm;
  int rank, size;           // on the host
  const std::string& kind;  // of the knob shared_memory
};

// Returns what make() builds over memory that all ranks of the host map. The leader makes the memory, the others open it. If
// one rank cannot, all ranks try the next kind of memory. The result is null on all of them if no kind is left. why_not gets
// one reason for each kind that has failed.
template <typename Thing, typename Make>
std::unique_ptr<Thing> share(const HostRanks& host, const char* name, std::size_t bytes,
                             std::string* why_not, Make make) {
  struct Problem {
    char text[200] = {};  // "": this rank has none
  };
  for (const auto kind : {SharedMemory::Kind::kMemfd, SharedMemory::Kind::kShm}) {
    const char* const knob = kind == SharedMemory::Kind::kMemfd ? "memfd" : "shm";
    if (host.kind != "auto" && host.kind != knob) continue;
    SharedMemory::Address address;
    std::unique_ptr<SharedMemory> memory;
    std::unique_ptr<Thing> thing;
    std::string problem;
    const auto attempt = [&](auto step) {
      try {
        if (problem.empty()) step();
      } catch (const std::exception& error) {
        // Catches every exception, because the other ranks wait for this one in MPI_Bcast and MPI_Allgather.
        problem = error.what();
      }
    };
    if (host.rank == 0) {
      attempt([&] { memory = SharedMemory::create(kind, name, bytes, &address); });
    }
    check(host.mpi, host.mpi->bcast(&address, sizeof(address), 0, host.comm), "MPI_Bcast");
    SharedMemory* const original = memory.get();  // the object made below will own it
    if (address.exists != 0) {
      if (host.rank > 0) attempt([&] { memory = SharedMemory::open(address, bytes); });
      attempt([&] { thing = make(std::move(memory)); });
    }
    Problem mine;
    problem.copy(mine.text, sizeof(mine.text) - 1);
    std::vector<Problem> all(static_cast<std::size_t>(host.size));
    check(host.mpi, host.mpi->allgather(&mine, sizeof(mine), all.data(), host.comm),
          "MPI_Allgather");
    // Now no rank opens the memory any more. If `thing` is null, the memory is destroyed and its name removed already, and
    // `original` points to no object.
    if (thing && original != nullptr) original->unlink();
    // If the leader could not make the memory, only the leader reports a problem, because the other ranks tried nothing.
    const auto told =
        std::ranges::find_if(all, [](const Problem& each) { return each.text[0] != '\0'; });
    if (told == all.end()) return thing;
    *why_not += (why_not->empty() ? "" : "; ") + std::string(knob) + ": " +
                std::string(told->text, strnlen(told->text, sizeof(told->text)));
  }
  return nullptr;
}

// Makes the host's memory for results. Each rank's part is twice as large as the results that the rank may keep for later, so
// that there is also room for results in use. The memory needs a memfd, because /dev/shm, whose size is limited, may be too
// small. Null: results are private, which only costs memory bandwidth.
std::shared_ptr<ResultMemory> share_results(const HostRanks& host, const base::Config& config) {
  std::uint64_t part = 0;
  const bool some_fit =
      ResultMemory::largest(config.streaming_bytes, host.size) >= ResultMemory::kSmallest;
  if (config.shared_outputs && some_fit && (host.kind == "auto" || host.kind == "memfd")) {
    constexpr std::size_t kPage = ResultMemory::kHugePage;
    part = (2 * config.output_cache_bytes + kPage - 1) / kPage * kPage;
  }
  // The first rank decides for all, because some of these knobs may differ between ranks.
  check(host.mpi, host.mpi->bcast(&part, sizeof(part), 0, host.comm), "MPI_Bcast");
  if (part == 0) return nullptr;
  const std::string memfd = "memfd";
  const HostRanks here = {host.mpi, host.comm, host.rank, host.size, memfd};
  std::string why_not;
  return share<ResultMemory>(here, "hvdlite-results", part * static_cast<std::uint64_t>(host.size),
                             &why_not, [&](std::unique_ptr<SharedMemory> memory) {
                               return std::make_unique<ResultMemory>(std::move(memory), part,
                                                                     host.rank);
                             });
}

// If a rank is lost, a collective of MPI may fail on those ranks that talk to it, while the others go on waiting. So a rank on
// which a collective fails revokes the communicators, which ends the wait of the others. If the list is empty, as after a
// success, the destructor does nothing.
struct Revoking {
  const hvdlite_mpi* mpi;
  std::vector<hvdlite_mpi_comm> comms{};
  ~Revoking() {
    if (mpi->revoke == nullptr) return;
    for (const hvdlite_mpi_comm comm : comms) mpi->revoke(comm);
  }
};

bool some_share_a_host(const std::vector<int>& leaders) {
  return std::set<int>(leaders.begin(), leaders.end()).size() < leaders.size();
}

}  // namespace

// How long to poll and to yield, by the first case that holds:
//
//    the knob spin_us is set              poll for that time
//    a processor for each rank            poll for kSpin, then yield for kYield
//    fewer processors, or not known       yield for kYieldWhereShared
base::WaitPolicy choose_waiting(const base::Config& config, int cpus, int ranks) {
  base::WaitPolicy waiting;
  waiting.core_to_spare = cpus >= 2 * ranks;
  if (config.spin_us >= 0) {
    waiting.spin =
        base::microseconds(static_cast<std::int64_t>(std::min(config.spin_us, kMostSpin)));
  } else if (cpus >= ranks) {
    waiting.spin = kSpin;
    waiting.yield = kYield;
  } else {
    waiting.yield = kYieldWhereShared;
  }
  return waiting;
}

// For each rank whose machine is known: if the first rank of this machine has another leader, both hosts become one, and the
// smaller number is its leader. A merge replaces the leader of all ranks of a host, also of those that were merged before.
//
// An example: the machines are a, a, b, b, and MPI has found only that ranks 2 and 3 share a host: leaders 0, 1, 2, 2. Rank 1
// has another leader than rank 0, the first rank of machine a. So the result is 0, 0, 2, 2.
std::vector<int> merge_hosts(std::vector<int> leaders, const std::vector<std::string>& machines) {
  std::map<std::string, int> first;  // first rank of each machine
  for (std::size_t r = 0; r < leaders.size(); ++r) {
    if (machines[r].empty()) continue;
    const int other = leaders[static_cast<std::size_t>(
        first.try_emplace(machines[r], static_cast<int>(r)).first->second)];
    const int own = leaders[r];
    if (own != other) {
      std::replace(leaders.begin(), leaders.end(), std::max(own, other), std::min(own, other));
    }
  }
  return leaders;
}

// An example: host A has the ranks 0, 1 and 2, host B has 3 and 4. Rank 4 has local rank 1 of 2, and its cross group is rank 1
// and rank 4, where it is the second of 2. Rank 2 has local rank 2 of 3, and is alone in its cross group.
base::Topology place(const std::vector<int>& leaders, int rank) {
  std::map<int, std::vector<int>> hosts;
  for (std::size_t r = 0; r < leaders.size(); ++r) hosts[leaders[r]].push_back(static_cast<int>(r));
  const std::vector<int>& mine = hosts.at(leaders[static_cast<std::size_t>(rank)]);
  base::Topology its;
  its.rank = rank;
  its.size = static_cast<int>(leaders.size());
  its.local_size = static_cast<int>(mine.size());
  its.local_rank = static_cast<int>(std::find(mine.begin(), mine.end(), rank) - mine.begin());
  // The cross group: the ranks with this local rank, one on each host that has such a rank.
  its.cross_size = 0;
  for (const auto& [leader, ranks] : hosts) {
    its.is_homogeneous = its.is_homogeneous && ranks.size() == mine.size();
    if (static_cast<int>(ranks.size()) <= its.local_rank) continue;
    if (leader == leaders[static_cast<std::size_t>(rank)]) its.cross_rank = its.cross_size;
    ++its.cross_size;
  }
  return its;
}

MpiWorld open_mpi(const char* shim_path, const void* comm_address, bool takes_comm,
                  const base::Config& config, std::size_t ledger_bytes) {
  const hvdlite_mpi* mpi = load_mpi(shim_path);
  hvdlite_mpi_comm given = {}, comm = {}, host = {};
  check(mpi, mpi->comm_from_address(comm_address, &given), "reading the communicator");
  if (takes_comm) {
    check(mpi, mpi->comm_adopt(given), "MPI_Comm_set_errhandler");
    comm = given;
  } else {
    check(mpi, mpi->comm_dup(given, &comm), "MPI_Comm_dup");
  }
  Revoking on_failure{mpi, {comm}};
  int rank = 0, size = 0;
  check(mpi, mpi->comm_rank(comm, &rank), "MPI_Comm_rank");
  check(mpi, mpi->comm_size(comm, &size), "MPI_Comm_size");
  // The key is the rank, so the host communicator has the order of ranks, and its rank 0 is the lowest rank of the host.
  int leader = rank;
  check(mpi, mpi->comm_split_shared(comm, rank, &host), "MPI_Comm_split_type");
  on_failure.comms.push_back(host);
  check(mpi, mpi->bcast(&leader, sizeof(leader), 0, host), "MPI_Bcast");

  const Introduction me = introduce(leader);
  std::vector<Introduction> all(static_cast<std::size_t>(size));
  check(mpi, mpi->allgather(&me, sizeof(me), all.data(), comm), "MPI_Allgather");
  std::vector<int> leaders;
  std::vector<std::string> machines;
  for (const Introduction& introduction : all) {
    leaders.push_back(introduction.leader);
    const std::string boot = introduction.boot;
    machines.push_back(boot.empty() ? "" : boot + " " + introduction.host);
  }
  std::vector<int> merged = merge_hosts(leaders, machines);
  if (merged != leaders) {  // on all ranks or on none
    // A communicator leaves the list before it is freed, because a freed one must not be revoked.
    on_failure.comms.pop_back();
    check(mpi, mpi->comm_free(&host), "MPI_Comm_free");
    check(mpi, mpi->comm_split(comm, merged[static_cast<std::size_t>(rank)], rank, &host),
          "MPI_Comm_split");
    on_failure.comms.push_back(host);
    leaders = std::move(merged);
  }

  MpiWorld world;
  world.topology = place(leaders, rank);
  const int local_rank = world.topology.local_rank, local_size = world.topology.local_size;
  const HostRanks joining = {mpi, host, local_rank, local_size, config.shared_memory};
  std::string why_no_page, why_no_window;
  std::unique_ptr<ControlPage> page = share<ControlPage>(
      joining, "hvdlite-control", ControlPage::bytes_for(local_size), &why_no_page,
      [&](std::unique_ptr<SharedMemory> memory) {
        return std::make_unique<ControlPage>(std::move(memory), local_size, local_rank);
      });
  std::unique_ptr<HostWindow> window;
  // A rank that is alone on its host needs a window only for hierarchical collectives with other hosts.
  if (page && some_share_a_host(leaders)) {
    const auto shape = HostWindow::Layout::for_ranks(local_size, ledger_bytes, config.tile_bytes);
    window = share<HostWindow>(joining, "hvdlite-window", shape.bytes(), &why_no_window,
                               [&](std::unique_ptr<SharedMemory> memory) {
                                 return HostWindow::over(std::move(memory), shape, local_rank);
                               });
  }
  if (window && local_size > 1) window->set_results(share_results(joining, config));
  on_failure.comms.pop_back();
  check(mpi, mpi->comm_free(&host), "MPI_Comm_free");
  const char has_window = window ? 1 : 0;
  std::vector<char> windows(static_cast<std::size_t>(size));
  check(mpi, mpi->allgather(&has_window, 1, windows.data(), comm), "MPI_Allgather");
  const bool windows_everywhere =
      std::all_of(windows.begin(), windows.end(), [](char has) { return has != 0; });
  if (local_rank == 0 && !window && config.shared_memory != "off") {
    std::string problem;
    if (local_size > 1 && !page) {
      problem = std::string("no shared memory between the ranks of host ") + me.host + " (" +
                why_no_page +
                "): they poll instead of waking each other and exchange tensors by MPI's "
                "messages, which costs latency, bandwidth and processor time";
    } else if (local_size > 1) {
      problem = std::string("the ranks of host ") + me.host + " share no window (" + why_no_window +
                "): they exchange tensors by MPI's messages, which costs latency and bandwidth; "
                "give the host's /dev/shm more room (docker: --shm-size), or leave "
                "HVDLITE_SHARED_MEMORY at auto";
    } else if (some_share_a_host(leaders)) {
      problem = std::string("host ") + me.host + " has no window (" +
                (page ? why_no_window : why_no_page) +
                "): the job's collectives cannot be hierarchical, which costs bandwidth between "
                "hosts; give the host's /dev/shm more room (docker: --shm-size)";
    }
    const base::Logger log(config.log_level, config.log_timestamps, rank, size);
    if (!problem.empty()) log.write(base::LogLevel::kWarning, "init", problem);
  }
  // Without a page this rank does not know on which processors the others may run. It then waits as if ranks shared processors.
  int processors = 0;
  if (page) {
    const base::CpuSet cpus = page->union_of_cpus();
    processors = CPU_COUNT(&cpus);
  }
  world.waiting = choose_waiting(config, processors, local_size);

  std::vector<MpiTransport::RankLocation> peers;
  for (int r = 0; r < size; ++r) {
    const Introduction& introduction = all[static_cast<std::size_t>(r)];
    peers.push_back({introduction.host, introduction.pid, leaders[static_cast<std::size_t>(r)]});
  }
  world.transport = std::make_unique<MpiTransport>(
      mpi, comm, rank, std::move(peers), std::move(page), std::move(window), windows_everywhere,
      MpiTransport::Limits{config.message_split_bytes, config.remote_message_bytes},
      MpiTransport::kEngineTag);
  on_failure.comms.clear();
  return world;
}

}  // namespace hvdlite::transport
