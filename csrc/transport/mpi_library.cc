// mpi4py has loaded an MPI, and Python has chosen the shim that was compiled for it. So one wheel of hvdlite serves every MPI
// for which it has a shim, and contains no MPI.
//
// load_mpi() checks in this order, and each check gives the error its own text:
//
//    dlopen            the file exists, and the loaded MPI has all functions that the shim needs
//    dlsym, version    the shim has the table of this version of hvdlite
//    MPI_Initialized   the program or hvdlite has initialized MPI
//    MPI_Query_thread  at least MPI_THREAD_SERIALIZED
//
// The shim is never closed: transports keep the pointer to its table.
#include "transport/mpi_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace hvdlite::transport {

using base::Error;
using base::ErrorCode;

void refuse(const hvdlite_mpi* mpi, int error, const std::string& where) {
  char text[512] = {};
  mpi->error_text(error, text, sizeof(text));
  throw Error(mpi->is_loss(error) != 0 ? ErrorCode::kPeerLost : ErrorCode::kSystem,
              where + "MPI says: " + text);
}

void check(const hvdlite_mpi* mpi, int error, const char* what) {
  if (error != 0) refuse(mpi, error, std::string("init: ") + what + " failed, ");
}

namespace {

// The thread levels, with the numbers that query_thread of the table gives.
constexpr int kSerialized = 2, kMultiple = 3;

int thread_level(const hvdlite_mpi* mpi) {
  int level = 0;
  check(mpi, mpi->query_thread(&level), "MPI_Query_thread");
  return level;
}

const hvdlite_mpi* load_shim(const char* path) {
  // The shim names the MPI library that it needs without a path. mpi4py has loaded a library of this name, so the dynamic
  // linker takes that one. RTLD_NOW: a function that this MPI lacks is an error here, and not at its first call.
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    throw Error(ErrorCode::kSystem,
                std::string("cannot load hvdlite's MPI shim: ") + (why != nullptr ? why : path));
  }
  const auto table = reinterpret_cast<hvdlite_mpi_table_fn>(dlsym(library, "hvdlite_mpi_table"));
  // This check comes before any other use of the table: in another version's table, other functions may lie at these places.
  if (table == nullptr || table()->abi_version != HVDLITE_MPI_ABI_VERSION) {
    throw Error(ErrorCode::kSystem,
                std::string(path) + " belongs to another version of hvdlite; reinstall hvdlite");
  }
  return table();
}

// Below MPI_THREAD_SERIALIZED, only the thread that has initialized MPI may call it, and the engine has a thread of its own.
// With MPI_THREAD_SERIALIZED, the program and hvdlite must not call MPI at the same time (docs/threading.md).
void check_thread_level(const hvdlite_mpi* mpi) {
  int initialized = 0;
  check(mpi, mpi->initialized(&initialized), "MPI_Initialized");
  if (initialized == 0) throw Error(ErrorCode::kSystem, "init: MPI is not initialized");
  if (thread_level(mpi) < kSerialized) {
    throw Error(ErrorCode::kUnsupported,
                "init: MPI was initialized with too low a thread level (single or funneled), "
                "hvdlite needs serialized or "
                "multiple; call hvdlite.init() before other code initializes MPI, or have it ask "
                "for MPI_THREAD_MULTIPLE");
  }
}

}  // namespace

const hvdlite_mpi* load_mpi(const char* shim_path) {
  const hvdlite_mpi* mpi = load_shim(shim_path);
  check_thread_level(mpi);
  return mpi;
}

bool takes_threads(const hvdlite_mpi* mpi) { return thread_level(mpi) >= kMultiple; }

}  // namespace hvdlite::transport
