#include "transport/result_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace hvdlite::transport {
namespace {

constexpr std::size_t kGrain = std::size_t{1} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
constexpr int kMostTries = 1000;
constexpr int kMostCopyingMs = 60'000;

template <typename Call>
int tried(Call call) {
  int error = EINTR;
  for (int tries = 0; (error == EINTR || error == EAGAIN) && tries < kMostTries; ++tries) {
    error = call();
  }
  return error;
}

// Takes pages for the whole block at once. False: the system lacks the memory. Otherwise the first write could end the process
// by SIGBUS.
bool populate(const SharedMemory& memory, std::byte* at, std::size_t bytes) {
  const int error = tried([&] { return madvise(at, bytes, kPopulateWrite) == 0 ? 0 : errno; });
  if (error != EINVAL) return error == 0;
  const auto offset = static_cast<off_t>(at - memory.data());
  const auto length = static_cast<off_t>(bytes);
  return tried([&] { return posix_fallocate(memory.descriptor(), offset, length); }) == 0;
}

std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

// All objects of this process, for the handlers of fork().
struct Forks {
  std::mutex mutex;
  std::vector<ResultMemory*> memories;
  int pipe[2] = {-1, -1};

  static Forks& all() {
    // Never destroyed, because a process may fork while it ends.
    static auto* const forks = new Forks;
    return *forks;
  }

  void add(ResultMemory* memory) {
    static const int failed =
        pthread_atfork([] { all().before(); }, [] { all().in_parent(); }, [] { all().in_child(); });
    if (failed != 0) throw std::bad_alloc();
    const std::lock_guard lock(mutex);
    memories.push_back(memory);
  }
  void remove(ResultMemory* memory) {
    const std::lock_guard lock(mutex);
    std::erase(memories, memory);
  }

  void before() {
    mutex.lock();
    bool some = false;
    for (ResultMemory* memory : memories) {
      memory->mutex_.lock();
      some = some || memory->some_in_use();
    }
    if (some && pipe2(pipe, O_CLOEXEC) != 0) pipe[0] = pipe[1] = -1;
  }
  void in_parent() {
    if (pipe[0] >= 0) {
      close(pipe[1]);
      pollfd end = {pipe[0], POLLIN, 0};
      tried([&] { return poll(&end, 1, kMostCopyingMs) >= 0 ? 0 : errno; });
      close(pipe[0]);
    }
    unlock();
  }
  void in_child() {
    bool copied = true;
    for (ResultMemory* memory : memories) copied = memory->copy_what_is_in_use() && copied;
    if (!copied) {
      constexpr std::string_view kText =
          "hvdlite: there is no memory to copy the results that a forked process inherits: it "
          "shares them with its parent\n";
      [[maybe_unused]] const auto written = write(STDERR_FILENO, kText.data(), kText.size());
    }
    for (const int end : pipe) {
      if (end >= 0) close(end);
    }
    unlock();
  }

 private:
  void unlock() {
    pipe[0] = pipe[1] = -1;
    for (ResultMemory* memory : memories) memory->mutex_.unlock();
    mutex.unlock();
  }
};

ResultMemory::ResultMemory(std::shared_ptr<SharedMemory> memory, std::size_t part_bytes,
                           int local_rank)
    : memory_(std::move(memory)),
      part_bytes_(part_bytes),
      own_(memory_->data() + static_cast<std::size_t>(local_rank) * part_bytes),
      owner_(getpid()) {
  HVD_CHECK(part_bytes % kHugePage == 0 && own_ + part_bytes <= memory_->data() + memory_->size());
  madvise(memory_->data(), memory_->size(),
          MADV_HUGEPAGE);  // without huge pages, small ones are used
  madvise(memory_->data(), memory_->size(),
          MADV_DONTDUMP);  // the address space belongs to all ranks
  Forks::all().add(this);
}

ResultMemory::~ResultMemory() { Forks::all().remove(this); }

std::byte* ResultMemory::at(int local_rank, std::size_t offset, std::size_t bytes) const {
  HVD_CHECK(offset <= part_bytes_ && bytes <= part_bytes_ - offset);
  return memory_->data() + static_cast<std::size_t>(local_rank) * part_bytes_ + offset;
}

std::optional<std::size_t> ResultMemory::offset_of(const void* data, std::size_t bytes) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto own = reinterpret_cast<std::uintptr_t>(own_);
  if (address < own || address - own > part_bytes_ || bytes > part_bytes_ - (address - own)) {
    return std::nullopt;
  }
  return address - own;
}

bool ResultMemory::is_owner() const { return getpid() == owner_; }

void* ResultMemory::get(std::size_t bytes) noexcept {
  if (bytes == 0 || bytes > part_bytes_ || !is_owner()) return nullptr;
  std::optional<std::size_t> offset;
  try {
    offset = add_block(bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  if (!offset) return nullptr;
  std::byte* const at = own_ + *offset;
  if (populate(*memory_, at, bytes)) return at;
  give_back(at);
  return nullptr;
}

std::optional<std::size_t> ResultMemory::add_block(std::size_t bytes) {
  const std::size_t wanted = rounded(bytes, kGrain);
  const std::size_t alignment = wanted < kHugePage ? kGrain : kHugePage;
  const std::lock_guard lock(mutex_);
  std::size_t start = 0;
  auto next = blocks_.begin();
  for (; next != blocks_.end() && next->offset < start + wanted; ++next) {
    start = rounded(next->offset + next->bytes, alignment);
  }
  if (start + wanted > part_bytes_) return std::nullopt;
  blocks_.insert(next, {start, bytes, true});
  return start;
}

std::vector<ResultMemory::Block>::iterator ResultMemory::find(const void* data) {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - own_);
  return std::ranges::find_if(blocks_, [&](const Block& block) { return block.offset == offset; });
}

void ResultMemory::use(const void* data, bool in_use) noexcept {
  if (!is_owner()) return;
  const std::lock_guard lock(mutex_);
  find(data)->in_use = in_use;
}

void ResultMemory::give_back(void* data) noexcept {
  if (!is_owner()) return;
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto block = find(data);
    block->in_use = false;
    bytes = rounded(block->bytes, kGrain);
  }
  madvise(data, bytes, MADV_REMOVE);
  const std::lock_guard lock(mutex_);
  blocks_.erase(find(data));
}

bool ResultMemory::some_in_use() const {
  return is_owner() && std::ranges::any_of(blocks_, &Block::in_use);
}

bool ResultMemory::copy_what_is_in_use() {
  bool copied = true;
  for (Block& block : blocks_) {
    // Each block is copied only once: if this child forks, the system copies the private copies.
    if (!std::exchange(block.in_use, false)) continue;
    void* const at = own_ + block.offset;
    void* const copy =
        mmap(nullptr, block.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy != MAP_FAILED) std::memcpy(copy, at, block.bytes);
    copied = copy != MAP_FAILED &&
             mremap(copy, block.bytes, block.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) == at &&
             copied;
  }
  return copied;
}

}  // namespace hvdlite::transport
