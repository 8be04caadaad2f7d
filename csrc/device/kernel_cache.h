// Compiled kernels on disk, so that only the first process waits for the compiler.
// Thread: any; processes may share a folder. Owns: nothing. Blocks: on the disk. Throws: nothing. If a file cannot be read, the
// kernels are compiled again; if one cannot be written, one line of the log says so.
//
// The GPU runs these files. So the folder and the files must belong to this user (or root), and no other user may be able to
// write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/log.h"

namespace hvdlite::device {

class KernelCache {
 public:
  // folder: its path. If this is "", the cache keeps nothing.
  KernelCache(std::string folder, const base::Logger& log);
  // name: of the file. key: a hash of everything that the image depends on. Returns nothing for an image with another key, and
  // for a damaged file.
  std::optional<std::string> find(const std::string& name, std::uint64_t key) const;
  void keep(const std::string& name, std::uint64_t key, const std::string& image) const;

 private:
  std::string folder_;
  base::Logger log_;
};

}  // namespace hvdlite::device
