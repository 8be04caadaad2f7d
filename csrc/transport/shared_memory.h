// Memory that processes of one host map together. It is either a memfd, which has no name and is not limited by the size of
// /dev/shm, or a file in /dev/shm. The file is unlinked as soon as all processes have opened it, so that a later crash leaves
// nothing behind. The memory is all zeros at first.
//
// Its mode is 0600. The name in /dev/shm is random, and must not exist before. Other processes open a memfd through /proc,
// which the kernel allows to processes that may trace its owner. open() accepts only such memory: of this user, with that mode,
// and exactly the file for which the address was made.
// Thread: as the code that uses it says. Owns: the mapping and one file descriptor. Blocks: no. Throws: Error(System), which
// names the call that failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hvdlite::transport {

class SharedMemory {
 public:
  enum class Kind { kMemfd, kShm };

  // The creator's description of the memory for other processes; plain bytes. An Address comes from another rank in a message,
  // so it may hold anything; open() checks it.
  struct Address {
    std::uint64_t exists = 0;  // 1: yes
    // Identify the file: in another pid namespace the path may name another process's file.
    std::uint64_t device = 0;
    std::uint64_t inode = 0;
    char path[128] = {};
  };

  static std::unique_ptr<SharedMemory> create(Kind kind, const std::string& name, std::size_t bytes,
                                              Address* address);
  // Throws Error(Internal) if `address` has a form that create() does not make.
  static std::unique_ptr<SharedMemory> open(const Address& address, std::size_t bytes);
  // Removes the name from the file system. The creator calls it when all processes have opened the memory.
  void unlink();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return memory_; }
  std::size_t size() const { return bytes_; }
  int descriptor() const { return fd_; }

  // Takes the pages from the system, near the calling processor. If it was not called before the first write and the memory's
  // file system is full, that write ends the process by SIGBUS.
  void reserve(std::size_t offset, std::size_t bytes) const;

 private:
  SharedMemory() = default;
  void map(std::size_t bytes);

  int fd_ = -1;
  std::byte* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::string path_;  // for messages
  bool linked_ = false;
};

}  // namespace hvdlite::transport
