// How a rank finds out that another rank of its host has ended, without a message from it. The rank stores its state in
// shared memory, and the kernel keeps the rank's lock:
//
//    state (stored by the rank)    record lock (dropped by the kernel)    why_lost() says
//    kUnborn or kLeft              either                                 nothing: it has not begun, or has left in order
//    kAlive                        held                                   nothing: it lives
//    kAlive                        dropped                                it has ended without telling the other ranks
//    kFailed                       either                                 the cause that the rank has stored
//
// The cause is stored before the state (release), and read after the state (acquire). A rank announces at most one failure. So
// a reader never sees half a cause.
//
// The life of a rank's part of the memory:
//
//    all zero             kUnborn; the bell was never rung
//    ControlPage()        takes the lock, stores the processors, then kAlive
//    announce_leaving()   kLeft: from now on the end of the process is no loss
//    announce_failure()   kFailed: the others read the cause, even if this process hangs or is gone
//    ~ControlPage()       the descriptor is closed, and the lock goes with it; the state stays for the others
//
// why_lost() costs a load, and a system call if the state is kAlive.
#include "transport/control_page.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/cache_line.h"
#include "base/error.h"
#include "transport/transport.h"

namespace hvdlite::transport {
namespace {

enum Life : std::uint32_t { kUnborn = 0, kAlive = 1, kFailed = 2, kLeft = 3 };

constexpr std::size_t kCauseBytes = 3072;

// The lock of one rank: a single byte of the file, at an offset that is the rank's number on the host.
struct flock byte_of(int local_rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = local_rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

// One rank's part, on cache lines of its own.
struct alignas(base::kCacheLine) ControlPage::RankPage {
  Bell bell;
  alignas(base::kCacheLine) std::atomic<std::uint32_t> state;
  base::CpuSet cpus;
  char cause[kCauseBytes];
};

ControlPage::RankPage& ControlPage::slot(int local_rank) const {
  return reinterpret_cast<RankPage*>(memory_->data())[local_rank];
}

std::size_t ControlPage::bytes_for(int local_size) {
  return sizeof(RankPage) * static_cast<std::size_t>(local_size);
}

// The state becomes kAlive after the lock is held. Otherwise another rank could see kAlive without a lock, and report a loss.
ControlPage::ControlPage(std::unique_ptr<SharedMemory> memory, int local_size, int local_rank)
    : memory_(std::move(memory)), local_size_(local_size), local_rank_(local_rank) {
  HVD_CHECK(memory_->size() == bytes_for(local_size));
  // Each rank reserves all of the memory. It is small, and the pages that another rank has taken already stay as they are.
  memory_->reserve(0, memory_->size());
  struct flock lock = byte_of(local_rank);
  if (fcntl(memory_->descriptor(), F_SETLK, &lock) != 0) {
    throw base::Error(base::ErrorCode::kSystem,
                      std::string("locking a byte of shared memory: ") + std::strerror(errno));
  }
  RankPage& mine = slot(local_rank);
  mine.cpus = base::allowed_cpus();
  mine.state.store(kAlive, std::memory_order_release);
}

Bell& ControlPage::bell(int local_rank) const { return slot(local_rank).bell; }

void ControlPage::announce_failure(const std::string& cause) {
  RankPage& mine = slot(local_rank_);
  const std::size_t length = std::min(cause.size(), kCauseBytes - 1);
  std::memcpy(mine.cause, cause.data(), length);
  mine.cause[length] = '\0';
  mine.state.store(kFailed, std::memory_order_release);
  for (int rank = 0; rank < local_size_; ++rank) bell(rank).ring();
}

void ControlPage::announce_leaving() {
  slot(local_rank_).state.store(kLeft, std::memory_order_release);
}

// F_GETLK asks whether a lock of another process is in the way of a lock on this byte. F_UNLCK means that there is none, so the
// rank's process has ended. If the call fails, the rank counts as alive: a wrong report of a loss would end the job.
std::string ControlPage::why_lost(int local_rank) const {
  const RankPage& theirs = slot(local_rank);
  std::uint32_t state = theirs.state.load(std::memory_order_acquire);
  if (state == kAlive) {
    struct flock lock = byte_of(local_rank);
    if (fcntl(memory_->descriptor(), F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return "";
    // The rank may have announced a failure or its leaving between the first load and the end of its lock.
    state = theirs.state.load(std::memory_order_acquire);
    if (state == kAlive) return kEndedUntold;
  }
  return state == kFailed ? std::string(theirs.cause, strnlen(theirs.cause, kCauseBytes)) : "";
}

// Reads without a lock: each rank stores its processors only once, in the constructor, and the ranks call this function after
// all constructors have ended.
base::CpuSet ControlPage::union_of_cpus() const {
  base::CpuSet all;
  CPU_ZERO(&all);
  for (int rank = 0; rank < local_size_; ++rank) CPU_OR(&all, &all, &slot(rank).cpus);
  return all;
}

}  // namespace hvdlite::transport
