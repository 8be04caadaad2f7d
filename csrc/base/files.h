// Small files.
// Thread: any. Owns: what `File` holds. Blocks: on the file system. Throws: nothing.
#pragma once

#include <cstddef>
#include <string>

namespace hvdlite::base {

// An open file, closed at the end.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

bool read_all(int file, void* to, std::size_t bytes);
bool write_all(int file, const void* from, std::size_t bytes);
// The text for errno.
std::string reason();

// The content of a file of /proc; empty if it cannot be read.
std::string read_file(const std::string& path);
std::string first_line_of(const std::string& path);
// Makes a file that no other user may read. Its path consists of `path`, random letters, and the suffix; `path` is set to it.
// Returns "". If this fails, there is no file, and it returns the reason.
std::string write_new_file(std::string& path, const std::string& suffix, const std::string& text);

}  // namespace hvdlite::base
