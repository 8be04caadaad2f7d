// New files: who may read them, and what is left when the disk is full.
#include "base/files.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "harness.h"

namespace hvdlite::base::files_test {
namespace {

namespace fs = std::filesystem;

TEST(a_new_file_is_written_whole_or_not_at_all) {
  std::string root = (fs::temp_directory_path() / "files-XXXXXX").string();
  EXPECT(mkdtemp(root.data()) != nullptr);
  std::string path = root + "/whole.";
  EXPECT(write_new_file(path, ".txt", "text").empty());
  EXPECT(read_file(path) == "text" && path.ends_with(".txt"));
  struct stat status = {};
  EXPECT(::stat(path.c_str(), &status) == 0 && (status.st_mode & 0777) == 0600);
  EXPECT(fs::remove(path));
  // As on a full disk: a part of the text is written, and then the system refuses.
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit = {100, 100};
  EXPECT(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  path = root + "/half.";
  EXPECT_HAS(write_new_file(path, ".txt", std::string(1000, 'x')), "File too large");
  EXPECT(fs::is_empty(root));
  fs::remove_all(root);
}

}  // namespace
}  // namespace hvdlite::base::files_test
