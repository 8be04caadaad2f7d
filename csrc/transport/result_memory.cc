// The life of a block of this rank's part. Other ranks only map the part; they never change the list.
//
//    call                           in blocks_              pages
//    get()        add_block()       added, in use           none yet
//                 populate()        in use                  taken, outside of the lock
//                   refused         removed                 returned: get() gives the block back, and returns null
//    use(false)                     kept for later          stay: OutputCache keeps the block for another result
//    use(true)                      in use                  stay
//    give_back()                    not in use              being returned, outside of the lock
//                                   removed                 returned
//
// While pages are taken or returned, the block is in the list. So no other thread gets these addresses meanwhile.
//
// Where a block lies: in the first gap that is large enough. Its size is rounded up to kGrain; a block of one grain begins at a
// grain's boundary, and a larger one at a huge page's. An example: the list has a block of 1 MiB at 0 and one of 1.5 MiB at
// 2 MiB. A block of 3 MiB then begins at 4 MiB, and after that a block of 1 MiB begins at 1 MiB.
//
// The locks. The handlers of fork() take the lock of Forks, then those of all ResultMemory objects, and release all of them in
// the parent and in the child. So a child inherits whole lists, and locks that it can take. All other code takes only one of
// these locks at a time.
//
// What a fork does, with blocks A (in use) and B (kept) in the list:
//
//    parent    the handler before() takes the locks and makes a pipe, because A is in use
//    child     copies A to private memory, moves the copy to A's addresses, closes both ends of its pipe
//    parent    closes its end for writing, and waits, for a limited time, until no process has such an end
//
// If the parent went on at once, it or another rank could store into A before the child has copied it. The wait also ends if
// the child is killed, because the kernel then closes its descriptors. B stays shared: no array lies in it, and the child puts
// no new result there, because a forked child has no usable engine.
#include "transport/result_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/thread.h"

namespace hvdlite::transport {
namespace {

// Blocks begin on multiples of this size. It is the size of the smallest result that comes here (kSmallest).
constexpr std::size_t kGrain = std::size_t{1} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
constexpr int kMostTries = 1000;
constexpr std::chrono::seconds kMostCopying{60};

// Repeats a system call that a signal has interrupted, or that lacks something for a moment. Without the limit, a process that
// gets signals faster than the call succeeds would stay here for ever. call() returns 0 or the error.
template <typename Call>
int tried(Call call) {
  int error = EINTR;
  for (int tries = 0; (error == EINTR || error == EAGAIN) && tries < kMostTries; ++tries) {
    error = call();
  }
  return error;
}

// Takes pages for the whole block at once. False: the system lacks the memory. Without populate(), the first write would then
// end the process by SIGBUS. A kernel that does not know MADV_POPULATE_WRITE answers EINVAL. Then reserve() takes the pages,
// and the first touches still cost page faults.
bool populate(const SharedMemory& memory, std::byte* at, std::size_t bytes) {
  const int error = tried([&] { return madvise(at, bytes, kPopulateWrite) == 0 ? 0 : errno; });
  if (error != EINVAL) return error == 0;
  try {
    memory.reserve(static_cast<std::size_t>(at - memory.data()), bytes);
  } catch (const base::Error&) {
    return false;
  }
  return true;
}

std::size_t rounded(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

// All objects of this process, for the handlers of fork().
struct Forks {
  std::mutex mutex;  // guards both members below, and is held through a fork
  std::vector<ResultMemory*> memories;
  int pipe[2] = {-1, -1};  // of the fork under way; -1: it has none

  static Forks& all() {
    // Never destroyed, because a process may fork while it ends.
    static auto* const forks = new Forks;
    return *forks;
  }

  // The handlers are registered once, at the first object: POSIX has no call that removes them.
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

  // Without blocks in use there is nothing to copy, so the parent need not wait: no pipe is made. If no pipe can be made, the
  // parent goes on at once, and the child may copy what the parent has changed meanwhile.
  void before() {
    mutex.lock();
    bool some = false;
    for (ResultMemory* memory : memories) {
      memory->mutex_.lock();
      some = some || memory->some_in_use();
    }
    if (some && pipe2(pipe, O_CLOEXEC) != 0) pipe[0] = pipe[1] = -1;
  }
  // Nobody writes into the pipe. poll() returns when no process has an end for writing any more. A signal interrupts it, and the
  // next call waits for the rest of kMostCopying.
  void in_parent() {
    if (pipe[0] >= 0) {
      close(pipe[1]);  // otherwise this process itself would keep the pipe open
      pollfd end = {pipe[0], POLLIN, 0};
      const auto until = base::Clock::now() + kMostCopying;
      auto rest = std::chrono::milliseconds(kMostCopying);
      while (rest.count() > 0 && poll(&end, 1, static_cast<int>(rest.count())) < 0 &&
             errno == EINTR) {
        rest = std::chrono::ceil<std::chrono::milliseconds>(until - base::Clock::now());
      }
      close(pipe[0]);
    }
    unlock();
  }
  // In the child only the thread that has called fork() exists. Any other lock may stay locked for ever, because another thread
  // of the parent held it at the fork. So this handler allocates nothing, and writes its text by a system call.
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

// The comparison subtracts, because the sum of a large offset and a size may overflow.
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

// In a forked child this object's part still belongs to the parent, although the child has a copy of the list.
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

// Goes through the gaps in order. In the gap before `next` the new block would begin at `start`. That gap is too small if
// `next` begins before the new block would end. The new block is inserted before `next`, so the list stays in order.
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

// Blocks have 1 MiB or more (OutputCache), so the list is short. The caller has the block, so the search finds it.
std::vector<ResultMemory::Block>::iterator ResultMemory::find(const void* data) {
  const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(data) - own_);
  return std::ranges::find_if(blocks_, [&](const Block& block) { return block.offset == offset; });
}

void ResultMemory::use(const void* data, bool in_use) noexcept {
  if (!is_owner()) return;
  const std::lock_guard lock(mutex_);
  find(data)->in_use = in_use;
}

// The block is first marked as not in use, because a child that is forked during madvise() must not copy pages that are being
// returned. madvise() returns whole grains: no other block begins in the last one. It may take long, so the lock is released
// meanwhile. The list may change then, and so the block is searched for again.
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

// mremap() replaces the shared pages at the block's addresses by the copy in one step. So arrays of the child keep their
// addresses. If there is no memory for a copy, the block stays shared, and the next one is tried.
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
