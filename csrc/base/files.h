// Functions that read and write small files.
// Thread: any. Owns: what `File` holds. Blocks: on the file system. Throws: nothing.
#pragma once

#include <cstddef>
#include <string>

namespace hvdlite::base {

// An open file. The destructor closes it.
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
// The system's text for the current errno.
std::string reason();

// The content of a file, for example in /proc; empty if it cannot be read.
std::string read_file(const std::string& path);
std::string first_line_of(const std::string& path);
// Creates a file that no other user may read, and writes `text` into it. The file's path consists of `path`, random letters and
// `suffix`; `path` becomes this whole path. Returns "" after a success. After a failure there is no file, and the reason is
// returned.
std::string write_new_file(std::string& path, const std::string& suffix, const std::string& text);

}  // namespace hvdlite::base
