#include "nccl/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>

namespace fake {
namespace {

constexpr std::size_t kHead = std::size_t{1} << 20;
constexpr std::size_t kRooms = kMaxRanks * 2 + kMaxRanks * kMaxRanks;
constexpr std::size_t kBytes = kHead + kRooms * kRoom;
static_assert(sizeof(Shared) <= kHead);

struct Id {
  char mark[16];
  int process;
  int file;
  std::uint64_t cookie;
};
static_assert(sizeof(Id) <= sizeof(nccl::UniqueId));

// The files behind the ids that were made here, until all ranks have opened them.
struct Ids {
  std::mutex mutex;
  std::map<std::uint64_t, int> files;
};

Ids& ids() {
  static Ids& instance = *new Ids;
  return instance;
}

}  // namespace

nccl::Result Segment::make_id(nccl::UniqueId* id) {
  const int file = memfd_create("fake-nccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kBytes)) != 0) return 2;
  std::random_device random;
  Id made{"fake NCCL id", getpid(), file, (std::uint64_t{random()} << 32 | random()) + 1};
  if (pwrite(file, &made.cookie, sizeof(made.cookie), 0) != sizeof(made.cookie)) return 2;
  std::memset(id->bytes, 0, sizeof(id->bytes));
  std::memcpy(id->bytes, &made, sizeof(made));
  std::lock_guard lock(ids().mutex);
  ids().files[made.cookie] = file;
  return 0;
}

std::shared_ptr<Segment> Segment::open(const nccl::UniqueId& bytes) {
  Id id{};
  std::memcpy(&id, bytes.bytes, sizeof(id));
  if (std::strcmp(id.mark, "fake NCCL id") != 0) return nullptr;
  const std::string path = "/proc/" + std::to_string(id.process) + "/fd/" + std::to_string(id.file);
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) {
    close(file);
    return nullptr;
  }
  std::shared_ptr<Segment> segment(new Segment(static_cast<char*>(base), file));
  return segment->shared().cookie == id.cookie ? segment : nullptr;
}

Segment::~Segment() {
  munmap(base_, kBytes);
  close(file_);
}

char* Segment::room(std::size_t index) { return base_ + kHead + index * kRoom; }

void Segment::give_back(char* room, std::size_t bytes) {
  constexpr std::size_t kWorthIt = std::size_t{1} << 20;
  if (bytes < kWorthIt) return;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, room - base_,
            static_cast<off_t>(bytes));
}

void Segment::fail(int code, const char* text) {
  Shared& s = shared();
  int nobody = 0;
  if (!s.failing.compare_exchange_strong(nobody, 1)) return;
  std::snprintf(s.failure, sizeof(s.failure), "%s", text);
  s.failed.store(code);
  std::fprintf(stderr, "fake NCCL: %s\n", text);
}

void Segment::forget_id(const nccl::UniqueId& bytes) {
  Id id{};
  std::memcpy(&id, bytes.bytes, sizeof(id));
  std::lock_guard lock(ids().mutex);
  const auto found = ids().files.find(id.cookie);
  if (found == ids().files.end()) return;
  close(found->second);
  ids().files.erase(found);
}

void Segment::forget_all() {
  std::lock_guard lock(ids().mutex);
  for (const auto& [cookie, file] : ids().files) close(file);
  ids().files.clear();
}

}  // namespace fake
