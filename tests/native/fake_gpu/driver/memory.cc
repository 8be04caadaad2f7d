#include "driver/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace fake {
namespace {

constexpr std::size_t kSpace = std::size_t{64} << 30;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;
constexpr unsigned char kFresh = 0xff;   // a NaN as a float of any size, -1 as an integer
constexpr unsigned char kMargin = 0xc7;  // around an allocation, up to the page's border

struct Allocation {
  Context* context = nullptr;
  std::size_t bytes = 0;
  std::size_t first_page = 0;  // offsets in the range
  std::size_t end_page = 0;
};

// Tells the address sanitizer, where there is one, what no kernel may touch.
void forbid([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(memory, bytes);
#endif
}

void allow([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(memory, bytes);
#endif
}

struct Memory {
  char* open = nullptr;  // the public addresses
  char* alias = nullptr;
  int file = -1;
  std::size_t cursor = kPage;  // where the search for room goes on
  std::map<cuda::Address, Allocation> device;
  std::map<cuda::Address, Allocation> pinned;
};

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::abort();
}

Memory& memory() {
  static Memory& instance = []() -> Memory& {
    auto* made = new Memory;
    made->file = memfd_create("fake-gpu", MFD_CLOEXEC);
    if (made->file < 0 || ftruncate(made->file, kSpace) != 0) die("fake GPU: memfd");
    const auto map = [&](int protection) {
      void* at = mmap(nullptr, kSpace, protection, MAP_SHARED | MAP_NORESERVE, made->file, 0);
      if (at == MAP_FAILED) die("fake GPU: mmap");
      return static_cast<char*>(at);
    };
    made->open = map(PROT_NONE);
    made->alias = map(PROT_READ | PROT_WRITE);
    return *made;
  }();
  return instance;
}

cuda::Address address_of(const void* memory) { return reinterpret_cast<cuda::Address>(memory); }

// The offset of `bytes` free bytes with a page of nothing on both sides; 0 if there is no such room.
std::size_t find_room(Memory& m, std::size_t bytes) {
  std::size_t at = m.cursor;
  for (int rounds = 0; rounds < 2; at = kPage, ++rounds) {
    auto next = m.device.lower_bound(address_of(m.open + at));
    if (next != m.device.begin()) at = std::max(at, std::prev(next)->second.end_page + kPage);
    for (; next != m.device.end(); ++next) {
      if (at + bytes + kPage <= next->second.first_page) break;
      at = next->second.end_page + kPage;
    }
    if (at + bytes + kPage <= kSpace) return at;
  }
  return 0;
}

// The bytes of an allocation's pages that are not its own.
template <typename Action>
void for_margins(const Memory& m, cuda::Address address, const Allocation& a, Action action) {
  const std::size_t offset = address - address_of(m.open);
  action(a.first_page, offset - a.first_page);
  action(offset + a.bytes, a.end_page - offset - a.bytes);
}

const std::pair<const cuda::Address, Allocation>* holder(
    const std::map<cuda::Address, Allocation>& allocations, cuda::Address address) {
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  --next;
  return address < next->first + next->second.bytes ? &*next : nullptr;
}

void release(Memory& m, std::map<cuda::Address, Allocation>::iterator found) {
  const Allocation& a = found->second;
  for_margins(m, found->first, a,
              [&](std::size_t at, std::size_t bytes) { allow(m.open + at, bytes); });
  // Nothing of it can be read any more, and the memory is the machine's again.
  fallocate(m.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(a.first_page),
            static_cast<off_t>(a.end_page - a.first_page));
  a.context->allocated -= a.bytes;
  m.device.erase(found);
}

bool intact(const Memory& m, cuda::Address address, const Allocation& a) {
  bool same = true;
  for_margins(m, address, a, [&](std::size_t at, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      same = same && static_cast<unsigned char>(m.alias[at + i]) == kMargin;
    }
  });
  return same;
}

}  // namespace

Place place_of(cuda::Address address, std::size_t bytes) {
  const Memory& m = memory();
  if (const auto* found = holder(m.device, address)) {
    return {Where::kDevice, found->second.context,
            address + bytes <= found->first + found->second.bytes};
  }
  if (const auto* found = holder(m.pinned, address)) {
    return {Where::kPinned, found->second.context,
            address + bytes <= found->first + found->second.bytes};
  }
  if (settings().host_memory && !looks_like_device(address)) return {Where::kPinned, nullptr, true};
  return {};
}

bool looks_like_device(cuda::Address address) {
  const cuda::Address first = address_of(memory().open);
  return address >= first && address < first + kSpace;
}

void* reach(cuda::Address address, std::size_t bytes, const char* what) {
  Lock lock(world().mutex);
  return reach_locked(address, bytes, what);
}

void* reach_locked(cuda::Address address, std::size_t bytes, const char* what) {
  const Place place = place_of(address, bytes);
  const bool lost = place.where == Where::kPageable ? looks_like_device(address) : !place.inside;
  if (lost) {
    std::fprintf(
        stderr, "fake GPU: %s touches %zu bytes at %#llx, which are not (or no longer) allocated\n",
        what, bytes, address);
    return nullptr;
  }
  if (place.where != Where::kDevice) return reinterpret_cast<void*>(address);
  return memory().alias + (address - address_of(memory().open));
}

OpenMemory::OpenMemory() {
  Lock lock(world().mutex);
  const Memory& m = memory();
  for (const auto& [address, a] : m.device) {
    ranges_.push_back({address_of(m.open + a.first_page), a.end_page - a.first_page});
    mprotect(m.open + a.first_page, a.end_page - a.first_page, PROT_READ | PROT_WRITE);
  }
}

OpenMemory::~OpenMemory() {
  Lock lock(world().mutex);
  for (const Range& range : ranges_) {
    mprotect(reinterpret_cast<void*>(range.first), range.bytes, PROT_NONE);
  }
}

std::string damaged() {
  Lock lock(world().mutex);
  const Memory& m = memory();
  std::string text;
  for (const auto& [address, a] : m.device) {
    if (intact(m, address, a)) continue;
    char line[120];
    std::snprintf(line, sizeof(line), "somebody wrote beside the %zu bytes at %#llx\n", a.bytes,
                  address);
    text += line;
    for_margins(m, address, a, [&](std::size_t at, std::size_t bytes) {
      std::memset(m.alias + at, kMargin, bytes);  // so that it is reported once
    });
  }
  return text;
}

std::string memory_leaks() {
  std::string text;
  const auto list = [&](const char* what, const std::map<cuda::Address, Allocation>& all) {
    std::size_t bytes = 0;
    for (const auto& [address, a] : all) bytes += a.bytes;
    if (all.empty()) return;
    text += std::to_string(all.size()) + " allocations of " + what + " (" + std::to_string(bytes) +
            " bytes)\n";
  };
  list("device memory", memory().device);
  list("page-locked memory", memory().pinned);
  return text;
}

void reset_memory() {
  Memory& m = memory();
  while (!m.device.empty()) release(m, m.device.begin());
  for (const auto& [address, a] : m.pinned) std::free(reinterpret_cast<void*>(address));
  m.pinned.clear();
}

namespace {

Result allocate(Context& context, std::size_t bytes, cuda::Address* address) {
  Memory& m = memory();
  const std::size_t limit = static_cast<std::size_t>(settings().memory_mb) << 20;
  if (bytes > limit - std::min(limit, context.allocated)) return cuda::kOutOfMemory;
  const std::size_t used = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const std::size_t pages = (used + kPage - 1) / kPage * kPage;
  const std::size_t first = find_room(m, pages);
  if (first == 0) return cuda::kOutOfMemory;
  m.cursor = first + pages + kPage;
  // It ends where its pages end, because nobody can touch the page behind them.
  *address = address_of(m.open + first + pages - used);
  const Allocation& a = m.device[*address] = {&context, bytes, first, first + pages};
  context.allocated += bytes;
  std::memset(m.alias + (*address - address_of(m.open)), kFresh, bytes);
  for_margins(m, *address, a, [&](std::size_t at, std::size_t margin) {
    std::memset(m.alias + at, kMargin, margin);
    forbid(m.open + at, margin);
  });
  return cuda::kSuccess;
}

}  // namespace
}  // namespace fake

using fake::cuda::Address;
using fake::cuda::Result;

FAKE_EXPORT Result cuMemAlloc_v2(Address* address, std::size_t bytes) {
  FAKE_ENTER("cuMemAlloc");
  fake::Lock lock(fake::world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  if (const Result error = fake::unsafe_in_capture()) return error;
  if (address == nullptr || bytes == 0) return fake::kInvalidValue;
  return fake::allocate(*context, bytes, address);
}

// Frees it even if it returns an error, injected or not: that is the failure of earlier work.
FAKE_EXPORT Result cuMemFree_v2(Address address) {
  const int injected = fake::fail(fake::enter("cuMemFree"));
  fake::Lock lock(fake::world().mutex);
  fake::Context* context = nullptr;
  const Result error = fake::current(&context);
  if (context == nullptr) return error;
  if (const Result unsafe = fake::unsafe_in_capture()) return unsafe;
  if (address == 0) return injected;
  const auto found = fake::memory().device.find(address);
  if (found == fake::memory().device.end()) return fake::kInvalidValue;
  const Result drained = fake::drain_all(lock, *found->second.context);
  fake::release(fake::memory(), fake::memory().device.find(address));
  return injected != 0 ? injected : drained;
}

FAKE_EXPORT Result cuMemHostAlloc(void** memory, std::size_t bytes, unsigned) {
  FAKE_ENTER("cuMemHostAlloc");
  fake::Lock lock(fake::world().mutex);
  fake::Context* context = nullptr;
  if (const Result error = fake::current(&context)) return error;
  if (const Result error = fake::unsafe_in_capture()) return error;
  if (memory == nullptr || bytes == 0) return fake::kInvalidValue;
  *memory = std::aligned_alloc(fake::kPage, (bytes + fake::kPage - 1) / fake::kPage * fake::kPage);
  if (*memory == nullptr) return fake::cuda::kOutOfMemory;
  std::memset(*memory, fake::kFresh, bytes);
  fake::memory().pinned[fake::address_of(*memory)] = {context, bytes, 0, 0};
  return fake::cuda::kSuccess;
}

FAKE_EXPORT Result cuMemFreeHost(void* memory) {
  const int injected = fake::fail(fake::enter("cuMemFreeHost"));
  fake::Lock lock(fake::world().mutex);
  fake::Context* context = nullptr;
  const Result error = fake::current(&context);
  if (context == nullptr) return error;
  const auto found = fake::memory().pinned.find(fake::address_of(memory));
  if (found == fake::memory().pinned.end()) return fake::kInvalidValue;
  const Result drained = fake::drain_all(lock, *found->second.context);
  fake::memory().pinned.erase(fake::address_of(memory));
  std::free(memory);
  return injected != 0 ? injected : drained;
}

// 2: the kind of memory (1 host, 2 device); 9: the GPU, of page-locked memory the one in whose context it was allocated.
FAKE_EXPORT Result cuPointerGetAttribute(void* value, int attribute, Address address) {
  FAKE_ENTER("cuPointerGetAttribute");
  fake::Lock lock(fake::world().mutex);
  if (!fake::world().initialised) return fake::cuda::kNotInitialized;
  const fake::Place place = fake::place_of(address, 0);
  const int passes_for = fake::settings().host_memory - 1;
  if (value != nullptr && place.context == nullptr && passes_for >= 0) {
    *static_cast<int*>(value) = attribute == 2 ? 2 : passes_for;
    return fake::cuda::kSuccess;
  }
  if (value == nullptr || place.context == nullptr) return fake::kInvalidValue;
  if (attribute == 2) {
    *static_cast<unsigned*>(value) = place.where == fake::Where::kDevice ? 2 : 1;
  } else if (attribute == fake::cuda::kPointerAttributeDeviceOrdinal) {
    *static_cast<int*>(value) = place.context->device;
  } else {
    return fake::kInvalidValue;
  }
  return fake::cuda::kSuccess;
}
