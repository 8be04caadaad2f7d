#include "transport/control_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

namespace hvdlite::transport {
namespace {

enum State : std::uint32_t { kUnborn = 0, kAlive = 1, kFailed = 2, kLeft = 3 };

constexpr std::size_t kCauseBytes = 3072;

}  // namespace

// One rank's part, on cache lines of its own.
struct alignas(64) ControlPage::Slot {
  std::atomic<std::uint32_t> bell;
  std::atomic<std::uint32_t> sleepers;
  alignas(64) std::atomic<std::uint32_t> state;
  base::CpuSet cpus;
  char cause[kCauseBytes];
};

ControlPage::Slot& ControlPage::slot(int local_rank) const {
  return static_cast<Slot*>(memory_)[local_rank];
}

std::unique_ptr<ControlPage> ControlPage::create(int local_size, bool memfd, PageAddress* address) {
  *address = PageAddress{};
  std::string shm_path;
  int fd = -1;
  if (memfd) {
    fd = memfd_create("hvdlite-control", MFD_CLOEXEC);
    snprintf(address->path, sizeof(address->path), "/proc/%d/fd/%d", getpid(), fd);
  } else {
    std::uint64_t random[2] = {};
    if (getrandom(random, sizeof(random), 0) != sizeof(random)) return nullptr;
    snprintf(address->path, sizeof(address->path), "/dev/shm/hvdlite-%016llx%016llx",
             static_cast<unsigned long long>(random[0]),
             static_cast<unsigned long long>(random[1]));
    fd = ::open(address->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    shm_path = address->path;
  }
  if (fd < 0) return nullptr;
  const auto bytes = static_cast<off_t>(sizeof(Slot) * static_cast<std::size_t>(local_size));
  // fallocate reserves the pages: on a full tmpfs a plain mapping would kill the rank with SIGBUS later.
  if (ftruncate(fd, bytes) != 0 || posix_fallocate(fd, 0, bytes) != 0) {
    close(fd);
    if (!shm_path.empty()) ::unlink(shm_path.c_str());
    return nullptr;
  }
  void* memory =
      mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    close(fd);
    if (!shm_path.empty()) ::unlink(shm_path.c_str());
    return nullptr;
  }
  address->exists = true;
  std::unique_ptr<ControlPage> page(new ControlPage(fd, memory, local_size, -1));
  page->shm_path_ = shm_path;
  return page;
}

std::unique_ptr<ControlPage> ControlPage::open(const PageAddress& address, int local_size,
                                               int local_rank) {
  if (!address.exists) return nullptr;
  const int fd = ::open(address.path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  const std::size_t bytes = sizeof(Slot) * static_cast<std::size_t>(local_size);
  struct stat info;
  void* memory = MAP_FAILED;
  if (fstat(fd, &info) == 0 && static_cast<std::size_t>(info.st_size) == bytes) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = local_rank;
  lock.l_len = 1;
  if (memory == MAP_FAILED || fcntl(fd, F_SETLK, &lock) != 0) {
    if (memory != MAP_FAILED) munmap(memory, bytes);
    close(fd);
    return nullptr;
  }
  std::unique_ptr<ControlPage> page(new ControlPage(fd, memory, local_size, local_rank));
  Slot& mine = page->slot(local_rank);
  mine.cpus = base::allowed_cpus();
  mine.state.store(kAlive, std::memory_order_release);
  return page;
}

void ControlPage::unlink() {
  if (!shm_path_.empty()) ::unlink(shm_path_.c_str());
  shm_path_.clear();
}

ControlPage::~ControlPage() {
  unlink();
  munmap(memory_, sizeof(Slot) * static_cast<std::size_t>(local_size_));
  close(fd_);
}

std::uint32_t ControlPage::bell() const {
  return slot(local_rank_).bell.load(std::memory_order_seq_cst);
}

void ControlPage::wait(std::uint32_t seen, base::microseconds limit) {
  Slot& mine = slot(local_rank_);
  mine.sleepers.fetch_add(1, std::memory_order_seq_cst);
  base::futex_wait(mine.bell, seen, limit, base::FutexScope::kHost);
  mine.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void ControlPage::ring(int local_rank) {
  Slot& theirs = slot(local_rank);
  theirs.bell.fetch_add(1, std::memory_order_seq_cst);
  if (theirs.sleepers.load(std::memory_order_seq_cst) > 0) {
    base::futex_wake_all(theirs.bell, base::FutexScope::kHost);
  }
}

void ControlPage::announce_failure(const std::string& cause) {
  Slot& mine = slot(local_rank_);
  const std::size_t length = std::min(cause.size(), kCauseBytes - 1);
  std::memcpy(mine.cause, cause.data(), length);
  mine.cause[length] = '\0';
  mine.state.store(kFailed, std::memory_order_release);
  for (int rank = 0; rank < local_size_; ++rank) ring(rank);
}

void ControlPage::announce_leaving() {
  slot(local_rank_).state.store(kLeft, std::memory_order_release);
}

std::string ControlPage::why_lost(int local_rank) const {
  const Slot& theirs = slot(local_rank);
  const std::uint32_t state = theirs.state.load(std::memory_order_acquire);
  if (state == kFailed) return std::string(theirs.cause, strnlen(theirs.cause, kCauseBytes));
  if (state != kAlive) return "";
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = local_rank;
  lock.l_len = 1;
  if (fcntl(fd_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK) return "";
  // It may have announced something in the instant before its lock went.
  const std::uint32_t last = theirs.state.load(std::memory_order_acquire);
  if (last == kFailed) return std::string(theirs.cause, strnlen(theirs.cause, kCauseBytes));
  if (last == kLeft) return "";
  return "ended without a word: it was killed by a signal or called os._exit";
}

base::CpuSet ControlPage::union_of_cpus() const {
  base::CpuSet all;
  for (int rank = 0; rank < local_size_; ++rank) all.add(slot(rank).cpus);
  return all;
}

}  // namespace hvdlite::transport
