// Memory that processes of one host map together: a memfd (no name, not bound by the size of /dev/shm), or a file in /dev/shm
// that is unlinked as soon as all have opened it, so that a crash leaves nothing behind. All zero when it is made.
//
// Its mode is 0600. The name in /dev/shm is random, and is only taken if nothing has it; a memfd is found through /proc, which the
// kernel allows to processes that may trace its owner. Whoever opens what an address names opens nothing but such memory:
// of this user, with that mode, and the very file that the address was made for.
// Thread: as what it is used for. Owns: the mapping and one file descriptor. Blocks: no. Throws: Error(System) naming the
// call that failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hvdlite::transport {

class SharedMemory {
 public:
  enum class Kind { kMemfd, kShm };

  // How the one who made it tells the others where it is; plain bytes, sent through MPI, and so any bytes are an Address.
  struct Address {
    std::uint64_t exists = 0;  // 1: yes
    // Of the file: in another pid namespace the path may name somebody else's.
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    char path[128] = {};
  };

  static std::unique_ptr<SharedMemory> create(Kind kind, const std::string& name, std::size_t bytes,
                                              Address* address);
  // Error(Internal) for an address that create() does not make.
  static std::unique_ptr<SharedMemory> open(const Address& address, std::size_t bytes);
  // The one who made it, once all have opened it.
  void unlink();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return memory_; }
  std::size_t size() const { return bytes_; }
  int descriptor() const { return fd_; }

  // Takes the pages from the system, near the processor that calls. Without it a full file system would kill, by SIGBUS,
  // whoever writes to the memory first.
  void reserve(std::size_t offset, std::size_t bytes);

 private:
  explicit SharedMemory(int fd) : fd_(fd) {}
  void map(std::size_t bytes);

  int fd_;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::string path_;  // for messages
  bool linked_ = false;
};

}  // namespace hvdlite::transport
