#include "device/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/hash.h"

namespace hvdlite::device {
namespace {

// In front of every image, written and read on the same machine.
struct Header {
  char mark[8] = {'h', 'v', 'd', 'k', 'e', 'r', 'n', '1'};
  std::uint64_t key = 0;
  std::uint64_t size = 0;
  std::uint64_t hash = 0;  // of the image
};

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

std::string reason() { return std::system_category().message(errno); }

Header header_of(std::uint64_t key, const std::string& image) {
  Header header;
  header.key = key;
  header.size = image.size();
  base::Hasher hash;
  hash.add_text(image);
  header.hash = hash.value();
  return header;
}

bool ours_alone(const struct stat& status) {
  return (status.st_uid == geteuid() || status.st_uid == 0) && (status.st_mode & 022) == 0;
}

// mkdir -p, private. The reason why it is not there afterwards, or "".
std::string make_folder(const std::string& folder) {
  for (std::size_t slash = 1; slash != std::string::npos;) {
    slash = folder.find('/', slash + 1);
    const std::string part = folder.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return part + ": " + reason();
  }
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) return folder + ": " + reason();
  if (!S_ISDIR(status.st_mode)) return folder + " is no folder";
  return ours_alone(status) ? "" : folder + " belongs to, or may be written by, other users";
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

// Written beside its place and renamed into it, so nobody ever reads a half. The reason if it failed, or "".
std::string write_file(const std::string& path, const Header& header, const std::string& image) {
  std::string part = path + ".XXXXXX";
  const File file(::mkostemp(part.data(), O_CLOEXEC));  // of mode 0600
  if (file.get() < 0) return path + ": " + reason();
  if (write_all(file.get(), &header, sizeof(header)) &&
      write_all(file.get(), image.data(), image.size()) &&
      ::rename(part.c_str(), path.c_str()) == 0) {
    return "";
  }
  const std::string why = path + ": " + reason();
  ::unlink(part.c_str());
  return why;
}

}  // namespace

KernelCache::KernelCache(std::string folder, const base::Logger& log)
    : folder_(std::move(folder)), log_(log) {
  if (folder_.empty()) return;
  const std::string problem = make_folder(folder_);
  if (problem.empty()) return;
  log_.write(base::LogLevel::kWarning, "device",
             "compiled kernels are not kept (" + problem +
                 "), every process compiles them anew; set HVDLITE_KERNEL_CACHE to a folder of "
                 "yours, or to nothing to keep none");
  folder_.clear();
}

std::optional<std::string> KernelCache::find(const std::string& name, std::uint64_t key) const {
  if (folder_.empty()) return std::nullopt;
  const std::string path = folder_ + "/" + name;
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (file.get() < 0) return std::nullopt;
  struct stat status{};
  Header header;
  std::string image;
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && ours_alone(status) &&
      read_all(file.get(), &header, sizeof(header)) && header.size > 0 &&
      static_cast<std::uint64_t>(status.st_size) == sizeof(header) + header.size) {
    image.resize(header.size);
    if (read_all(file.get(), image.data(), image.size())) {
      const Header right = header_of(key, image);
      if (std::memcmp(&header, &right, sizeof(header)) == 0) return image;
    }
  }
  log_.write(base::LogLevel::kWarning, "device",
             "compiled again: " + path + " is damaged or belongs to somebody else");
  return std::nullopt;
}

void KernelCache::keep(const std::string& name, std::uint64_t key, const std::string& image) const {
  if (folder_.empty()) return;
  const std::string problem = write_file(folder_ + "/" + name, header_of(key, image), image);
  if (problem.empty()) return;
  log_.write(base::LogLevel::kWarning, "device", "compiled kernels are not kept (" + problem + ")");
}

}  // namespace hvdlite::device
