#include "transport/mpi_env.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "transport/control_page.h"
#include "transport/mpi_transport.h"

namespace hvdlite::transport {

using base::Error;
using base::ErrorCode;

namespace {

// Polling is worth while for about as long as it takes to fall asleep and be woken.
constexpr base::microseconds kDefaultSpin{50};
constexpr int kSerialized = 2;

// What each rank tells all others at init.
struct Introduction {
  int leader = 0;  // the lowest rank of its host
  int pid = 0;
  char host[64] = {};
};

void check(const hvdlite_mpi* mpi, int error, const char* what) {
  if (error == 0) return;
  char text[512] = {};
  mpi->error_text(error, text, sizeof(text));
  throw Error(ErrorCode::kSystem, std::string("init: ") + what + " failed, MPI says: " + text);
}

const hvdlite_mpi* load_shim(const char* path) {
  // The shim names no library: MPI's symbols are those mpi4py has already loaded.
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw Error(ErrorCode::kSystem,
                std::string("cannot load hvdlite's MPI shim: ") + (why != nullptr ? why : path));
  }
  const auto table = reinterpret_cast<hvdlite_mpi_table_fn>(dlsym(library, "hvdlite_mpi_table"));
  if (table == nullptr || table()->abi_version != HVDLITE_MPI_ABI_VERSION) {
    throw Error(ErrorCode::kSystem,
                std::string(path) + " belongs to another version of hvdlite; reinstall hvdlite");
  }
  return table();
}

void check_thread_level(const hvdlite_mpi* mpi) {
  int initialized = 0, level = 0;
  check(mpi, mpi->initialized(&initialized), "MPI_Initialized");
  if (initialized == 0) throw Error(ErrorCode::kSystem, "init: MPI is not initialized");
  check(mpi, mpi->query_thread(&level), "MPI_Query_thread");
  if (level < kSerialized) {
    throw Error(ErrorCode::kUnsupported,
                "init: MPI was initialized with too low a thread level (single or funneled), "
                "hvdlite needs serialized or "
                "multiple; call hvdlite.init() before other code initializes MPI, or have it ask "
                "for MPI_THREAD_MULTIPLE");
  }
}

// The host's shared page, or null on every rank of the host alike.
std::unique_ptr<ControlPage> share_page(const hvdlite_mpi* mpi, hvdlite_mpi_comm host,
                                        int local_rank, int local_size, const std::string& wanted) {
  for (const char* kind : {"memfd", "shm"}) {
    if (wanted != "auto" && wanted != kind) continue;
    const bool memfd = std::string_view(kind) == "memfd";
    PageAddress address;
    std::unique_ptr<ControlPage> original;
    if (local_rank == 0) original = ControlPage::create(local_size, memfd, &address);
    check(mpi, mpi->bcast(&address, sizeof(address), 0, host), "MPI_Bcast");
    std::unique_ptr<ControlPage> page = ControlPage::open(address, local_size, local_rank);
    const char opened = page ? 1 : 0;
    std::vector<char> all(static_cast<std::size_t>(local_size));
    check(mpi, mpi->allgather(&opened, 1, all.data(), host), "MPI_Allgather");
    if (original) original->unlink();
    if (std::all_of(all.begin(), all.end(), [](char ok) { return ok != 0; })) {
      // A process loses its record locks when it closes any descriptor of the file, so the leader keeps both.
      [[maybe_unused]] const ControlPage* kept = original.release();
      return page;
    }
  }
  return nullptr;
}

base::microseconds choose_spin(const base::Config& config, const ControlPage* page,
                               int local_size) {
  if (config.spin_us >= 0) return base::microseconds(static_cast<std::int64_t>(config.spin_us));
  const bool core_for_each = page != nullptr && page->union_of_cpus().count() >= local_size;
  return core_for_each ? kDefaultSpin : base::microseconds(0);
}

}  // namespace

MpiWorld place(const std::vector<int>& leaders, int rank) {
  std::map<int, std::vector<int>> hosts;
  for (std::size_t r = 0; r < leaders.size(); ++r) hosts[leaders[r]].push_back(static_cast<int>(r));
  MpiWorld world;
  world.rank = rank;
  world.size = static_cast<int>(leaders.size());
  const std::vector<int>& mine = hosts.at(leaders[static_cast<std::size_t>(rank)]);
  world.local_size = static_cast<int>(mine.size());
  world.local_rank = static_cast<int>(std::find(mine.begin(), mine.end(), rank) - mine.begin());
  // The cross group: the ranks with this local rank, one on each host that has so many.
  world.cross_size = 0;
  for (const auto& [leader, ranks] : hosts) {
    world.is_homogeneous = world.is_homogeneous && ranks.size() == mine.size();
    if (static_cast<int>(ranks.size()) <= world.local_rank) continue;
    if (leader == leaders[static_cast<std::size_t>(rank)]) world.cross_rank = world.cross_size;
    ++world.cross_size;
  }
  return world;
}

MpiWorld open_mpi(const char* shim_path, const void* comm_address, const base::Config& config) {
  const hvdlite_mpi* mpi = load_shim(shim_path);
  check_thread_level(mpi);
  hvdlite_mpi_comm given = {}, comm = {}, host = {};
  check(mpi, mpi->comm_from_address(comm_address, &given), "reading the communicator");
  check(mpi, mpi->comm_dup(given, &comm), "MPI_Comm_dup");
  int rank = 0, size = 0, local_rank = 0, local_size = 0;
  check(mpi, mpi->comm_rank(comm, &rank), "MPI_Comm_rank");
  check(mpi, mpi->comm_size(comm, &size), "MPI_Comm_size");
  check(mpi, mpi->comm_split_shared(comm, rank, &host), "MPI_Comm_split_type");
  check(mpi, mpi->comm_rank(host, &local_rank), "MPI_Comm_rank");
  check(mpi, mpi->comm_size(host, &local_size), "MPI_Comm_size");

  Introduction me;
  me.leader = rank;
  check(mpi, mpi->bcast(&me.leader, sizeof(me.leader), 0, host), "MPI_Bcast");
  me.pid = getpid();
  gethostname(me.host, sizeof(me.host) - 1);
  std::vector<Introduction> all(static_cast<std::size_t>(size));
  check(mpi, mpi->allgather(&me, sizeof(me), all.data(), comm), "MPI_Allgather");

  std::vector<int> leaders;
  leaders.reserve(all.size());
  for (const Introduction& introduction : all) leaders.push_back(introduction.leader);
  MpiWorld world = place(leaders, rank);
  std::unique_ptr<ControlPage> page =
      share_page(mpi, host, local_rank, local_size, config.shared_memory);
  check(mpi, mpi->comm_free(&host), "MPI_Comm_free");
  if (!page && local_rank == 0 && config.shared_memory != "off") {
    base::Logger(config.log_level, config.log_timestamps, rank, size)
        .write(
            base::LogLevel::kWarning, "init",
            std::string("no shared memory between the ranks of host ") + me.host +
                ": they poll instead of waking each other, which costs latency and processor time");
  }
  world.spin = choose_spin(config, page.get(), local_size);

  std::vector<MpiTransport::Peer> peers;
  for (int r = 0; r < size; ++r) {
    const Introduction& introduction = all[static_cast<std::size_t>(r)];
    const MpiWorld theirs = place(leaders, r);
    peers.push_back(
        {std::string(introduction.host, strnlen(introduction.host, sizeof(introduction.host))),
         introduction.pid, introduction.leader, theirs.local_rank});
  }
  world.transport = std::make_unique<MpiTransport>(mpi, comm, rank, std::move(peers),
                                                   std::move(page), config.message_split_bytes);
  return world;
}

}  // namespace hvdlite::transport
