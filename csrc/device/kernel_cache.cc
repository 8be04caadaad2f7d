// What a file consists of:
//
//    8 bytes       the mark "hvdkern1"
//    8 bytes       the key
//    8 bytes       the size of the image
//    8 bytes       the hash of the image
//    size bytes    the image
//
// find() uses a file only if all of this is true: it is an ordinary file of this user or of root that no other user may write,
// its size is that of the header plus the image, and the header is exactly the one that header_of() makes for the wanted key
// and the bytes that were read. Otherwise find() returns nothing, and its caller compiles the kernels again.
//
// keep() never changes a file in place (write_file). Two processes that keep the same image each write a temporary file and
// rename it. The last rename wins. A process that has opened the replaced file still reads all of that file.
//
// Nothing deletes files whose keys are no longer wanted. A new version of NVRTC or of hvdlite's kernels adds a file.
#include "device/kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/files.h"
#include "base/hash.h"

namespace hvdlite::device {
namespace {

// Precedes every image, in the byte order of the machine that writes the file. A machine with the other byte order refuses the
// file, because it reads a size that is not the file's.
struct ImageHeader {
  char mark[8] = {'h', 'v', 'd', 'k', 'e', 'r', 'n', '1'};
  std::uint64_t key = 0;
  std::uint64_t size = 0;
  std::uint64_t hash = 0;  // of the image
};

// The hash protects against a damaged file. It does not protect against an attacker, who can compute it; the checks of the
// owner and the mode do.
ImageHeader header_of(std::uint64_t key, const std::string& image) {
  ImageHeader header;
  header.key = key;
  header.size = image.size();
  base::Hasher hash;
  hash.add_text(image);
  header.hash = hash.value();
  return header;
}

// 022: the bits that let the group and all others write.
bool ours_alone(const struct stat& status) {
  return (status.st_uid == geteuid() || status.st_uid == 0) && (status.st_mode & 022) == 0;
}

// mkdir -p, with private permissions: for "/home/a/b" it makes "/home", "/home/a" and "/home/a/b", unless they exist. Only the
// owner and the mode of the last one are checked. Returns why the folder cannot be used, or "".
std::string make_folder(const std::string& folder) {
  for (std::size_t slash = 0; slash != std::string::npos;) {
    slash = folder.find('/', slash + 1);
    const std::string part = folder.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return part + ": " + base::reason();
  }
  struct stat status{};
  if (::stat(folder.c_str(), &status) != 0) return folder + ": " + base::reason();
  if (!S_ISDIR(status.st_mode)) return folder + " is no folder";
  return ours_alone(status) ? "" : folder + " belongs to, or may be written by, other users";
}

// The name of the temporary file is the path, a dot and six random characters. Returns why it failed, or "".
std::string write_file(const std::string& path, const ImageHeader& header,
                       const std::string& image) {
  const std::string head(reinterpret_cast<const char*>(&header), sizeof(header));
  std::string part = path + ".";
  std::string why = base::write_new_file(part, "", head + image);
  if (why.empty()) {
    if (::rename(part.c_str(), path.c_str()) == 0) return "";
    why = base::reason();
    ::unlink(part.c_str());
  }
  return path + ": " + why;
}

}  // namespace

KernelCache::KernelCache(std::string folder, const base::Logger& log)
    : folder_(std::move(folder)), log_(log) {
  if (folder_.empty()) return;
  const std::string problem = make_folder(folder_);
  if (problem.empty()) return;
  log_.write(
      base::LogLevel::kWarning, "device",
      "compiled kernels are not kept (" + problem +
          "), so every process compiles them again; set HVDLITE_KERNEL_CACHE to a folder that only "
          "you can write, or to off to keep none");
  folder_.clear();
}

std::optional<std::string> KernelCache::find(const std::string& name, std::uint64_t key) const {
  if (folder_.empty()) return std::nullopt;
  const std::string path = folder_ + "/" + name;
  // O_NOFOLLOW: a symbolic link could lead to a file elsewhere. If the open fails, the log says nothing, because usually no
  // file was kept so far.
  const base::File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (file.get() < 0) return std::nullopt;
  struct stat status{};
  ImageHeader header;
  std::string image;
  // fstat looks at the open file. Its path may lead to another file by now.
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) && ours_alone(status) &&
      base::read_all(file.get(), &header, sizeof(header)) && header.size > 0 &&
      static_cast<std::uint64_t>(status.st_size) == sizeof(header) + header.size) {
    image.resize(header.size);
    if (base::read_all(file.get(), image.data(), image.size())) {
      const ImageHeader right = header_of(key, image);
      if (std::memcmp(&header, &right, sizeof(header)) == 0) return image;
    }
  }
  log_.write(base::LogLevel::kWarning, "device",
             "compiled again: " + path + " is damaged, or another user could have written it");
  return std::nullopt;
}

void KernelCache::keep(const std::string& name, std::uint64_t key, const std::string& image) const {
  if (folder_.empty()) return;
  const std::string problem = write_file(folder_ + "/" + name, header_of(key, image), image);
  if (problem.empty()) return;
  log_.write(base::LogLevel::kWarning, "device", "compiled kernels are not kept (" + problem + ")");
}

}  // namespace hvdlite::device
