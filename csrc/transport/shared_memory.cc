// How processes get the same memory. One process makes it, and sends its Address to the others in a message:
//
//    create()    1  memfd_create, then fchmod to 0600; or a new file in /dev/shm with a random name and mode 0600
//                2  ftruncate to the size, fstat, mmap
//                3  the Address: path, device, inode, and last `exists` = 1. After an error `exists` is still 0
//    open()      1  path_of(): can create() have made this path?
//                2  open, in /dev/shm not through a link
//                3  fstat: the device and the inode of the Address, and the size that the caller expects?
//                4  fstat: a regular file of this user with mode 0600?
//                5  mmap
//    unlink()    by the creator, when all have opened the memory; a memfd has no name, so there it does nothing
//
// Why open() checks so much. The path alone proves nothing: in another pid namespace /proc/PID/fd/N is a file of another
// process, and in another container /dev/shm may be another folder. Device and inode identify the file itself. In /dev/shm
// another user may have made a file or a link of this name; steps 2 to 4 refuse both. A damaged Address may have any path;
// step 1 refuses those that create() never makes.
//
// Examples of paths:
//
//    memfd    /proc/4711/fd/9                                                   process 4711 made it, its descriptor is 9
//    shm      /dev/shm/hvdlite-window-6f1c0a5e9b3d27488e21d4c07ab95f13          32 hexadecimal digits
//
// The descriptor stays open as long as the object lives. Others open a memfd through its creator's descriptor, reserve() needs
// a descriptor, and a process that closed one would lose its record lock on the control page (control_page.h).
//
// If a step fails, the destructor undoes the earlier steps: it removes the name if this process made the file, unmaps, and
// closes.
#include "transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace hvdlite::transport {
namespace {

constexpr const char* kShmFolder = "/dev/shm/";
constexpr mode_t kMode = 0600;
constexpr std::size_t kReservedAtOnce = std::size_t{1} << 20;

[[noreturn]] void refuse(const std::string& what, int error) {
  throw base::Error(base::ErrorCode::kSystem, what + ": " + std::strerror(error));
}

// 128 random bits, from the kernel: nobody can guess the name and make the file first. O_EXCL refuses a name that exists.
std::string random_name(const std::string& name) {
  std::uint64_t random[2] = {};
  if (getrandom(random, sizeof(random), 0) != sizeof(random)) refuse("getrandom", errno);
  char text[40];
  snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(random[0]),
           static_cast<unsigned long long>(random[1]));
  return kShmFolder + name + "-" + text;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 12 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Is it a path that create() makes, "/proc/PID/fd/NUMBER" or "/dev/shm/hvdlite-..."? An address comes from another rank.
bool is_ours(std::string_view path) {
  if (path.starts_with(kShmFolder)) {
    path.remove_prefix(std::string_view(kShmFolder).size());
    return path.starts_with("hvdlite-") && path.find('/') == std::string_view::npos;
  }
  constexpr std::string_view kProc = "/proc/";
  constexpr std::string_view kFd = "/fd/";
  const std::size_t fd = path.find(kFd);
  return path.starts_with(kProc) && fd != std::string_view::npos &&
         is_number(path.substr(kProc.size(), fd - kProc.size())) &&
         is_number(path.substr(fd + kFd.size()));
}

// The path of an Address that came from another rank, checked before it is opened.
std::string path_of(const SharedMemory::Address& address) {
  const std::string path(address.path, strnlen(address.path, sizeof(address.path)));
  if (address.exists != 1 || path.size() == sizeof(address.path) || !is_ours(path)) {
    throw base::Error(base::ErrorCode::kInternal,
                      "another rank sent an address of shared memory that hvdlite does not make");
  }
  return path;
}

}  // namespace

std::unique_ptr<SharedMemory> SharedMemory::create(Kind kind, const std::string& name,
                                                   std::size_t bytes, Address* address) {
  *address = Address{};
  std::unique_ptr<SharedMemory> memory(new SharedMemory());
  std::string& path = memory->path_;
  int& fd = memory->fd_;
  if (kind == Kind::kMemfd) {
    fd = memfd_create(name.c_str(), MFD_CLOEXEC);
    if (fd < 0) refuse("memfd_create", errno);
    // The kernel makes a memfd with mode 0777. Even so, only processes that may inspect this process can open it through /proc.
    // But open() cannot tell such a memfd from a file that is open to all users, so it demands 0600 of both kinds.
    if (fchmod(fd, kMode) != 0) refuse("fchmod of a memfd", errno);
    path = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd);
  } else {
    path = random_name(name);
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
    if (fd < 0) refuse("creating " + path, errno);
    memory->linked_ = true;
  }
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) refuse("ftruncate of " + path, errno);
  struct stat info;
  if (fstat(fd, &info) != 0) refuse("fstat of " + path, errno);
  memory->map(bytes);
  HVD_CHECK(path.size() < sizeof(address->path));
  std::memcpy(address->path, path.c_str(), path.size());
  address->device = info.st_dev;
  address->inode = info.st_ino;
  address->exists = 1;
  return memory;
}

std::unique_ptr<SharedMemory> SharedMemory::open(const Address& address, std::size_t bytes) {
  const std::string path = path_of(address);
  // In /proc the last part of the path is always a link, to the memfd. In /dev/shm another user may have put a link.
  const int no_link = path.starts_with(kShmFolder) ? O_NOFOLLOW : 0;
  std::unique_ptr<SharedMemory> memory(new SharedMemory());
  memory->path_ = path;
  const int fd = memory->fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | no_link);
  if (fd < 0) refuse("opening " + path, errno);
  struct stat info;
  if (fstat(fd, &info) != 0) refuse("fstat of " + path, errno);
  if (info.st_dev != address.device || info.st_ino != address.inode ||
      static_cast<std::size_t>(info.st_size) != bytes) {
    throw base::Error(
        base::ErrorCode::kSystem,
        path +
            " names another file in this process; this process seems to run in another "
            "container or namespace than the process that made the memory");
  }
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 0777) != kMode) {
    throw base::Error(base::ErrorCode::kSystem,
                      path + " is not memory that only this user may open (it belongs to user " +
                          std::to_string(info.st_uid) +
                          "): the ranks of one host must run as one user");
  }
  memory->map(bytes);
  return memory;
}

void SharedMemory::map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) refuse("mmap of " + path_, errno);
  memory_ = static_cast<std::byte*>(memory);
  bytes_ = bytes;
}

// On older kernels a signal interrupts posix_fallocate, and tmpfs then takes back all pages that this call has reserved. With
// one call for a large memory, a process with a profiler's timer would begin again and again for ever. So each call reserves a
// small piece. (The function returns its error and does not set errno.)
void SharedMemory::reserve(std::size_t offset, std::size_t bytes) const {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, kReservedAtOnce);
    const int error =
        posix_fallocate(fd_, static_cast<off_t>(offset + done), static_cast<off_t>(piece));
    if (error == EINTR) continue;
    if (error != 0) refuse("reserving " + std::to_string(bytes) + " bytes of " + path_, error);
    done += piece;
  }
}

void SharedMemory::unlink() {
  if (linked_) ::unlink(path_.c_str());
  linked_ = false;
}

// The pages live on while another process maps them or has the file open.
SharedMemory::~SharedMemory() {
  unlink();
  if (memory_ != nullptr) munmap(memory_, bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace hvdlite::transport
