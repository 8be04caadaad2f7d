// Compiled kernels on disk, so that only the first process ever waits for the compiler.
// Thread: any; processes may share a folder. Owns: nothing. Blocks: on the disk. Throws: nothing: what cannot be read is compiled
// again, and what cannot be kept costs one line in the log.
//
// What is read here is run by the GPU, so folder and files must belong to this user (or root) and be writable by nobody else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/log.h"

namespace hvdlite::device {

class KernelCache {
 public:
  // An empty folder keeps nothing.
  KernelCache(std::string folder, const base::Logger& log);
  // name: of the file. key: of all that the image depends on; another key's image, or half an image, is none.
  std::optional<std::string> find(const std::string& name, std::uint64_t key) const;
  void keep(const std::string& name, std::uint64_t key, const std::string& image) const;

 private:
  std::string folder_;
  base::Logger log_;
};

}  // namespace hvdlite::device
