#include "base/files.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace hvdlite::base {

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

bool read_all(int file, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::read(file, static_cast<char*>(to) + done, bytes - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    done += static_cast<std::size_t>(got);
  }
  return true;
}

bool write_all(int file, const void* from, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t put = ::write(file, static_cast<const char*>(from) + done, bytes - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    done += static_cast<std::size_t>(put);
  }
  return true;
}

std::string reason() { return std::system_category().message(errno); }

std::string read_file(const std::string& path) {
  std::string text;
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return text;
  std::array<char, 4096> part;
  for (;;) {
    const ssize_t size = ::read(file.get(), part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(size));
  }
  return text;
}

std::string first_line_of(const std::string& path) {
  const std::string text = read_file(path);
  return text.substr(0, text.find('\n'));
}

std::string write_new_file(std::string& path, const std::string& suffix, const std::string& text) {
  path += "XXXXXX" + suffix;
  // mkostemps makes the file with mode 0600.
  const File file(::mkostemps(path.data(), static_cast<int>(suffix.size()), O_CLOEXEC));
  if (file.get() < 0) return reason();
  if (write_all(file.get(), text.data(), text.size())) return "";
  const std::string why = reason();
  ::unlink(path.c_str());
  return why;
}

}  // namespace hvdlite::base
