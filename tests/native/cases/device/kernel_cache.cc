// The folder of compiled kernels is made whatever its path looks like.
#include "device/kernel_cache.h"

#include <filesystem>

#include "harness.h"

namespace hvdlite::device::kernel_cache_test {
namespace {

namespace fs = std::filesystem;

TEST(folders_are_made_on_the_way) {
  std::string root = (fs::temp_directory_path() / "kernels-XXXXXX").string();
  EXPECT(mkdtemp(root.data()) != nullptr);
  fs::current_path(root);
  for (const std::string& folder : {std::string("k/x"), std::string("long/er"), root + "/a/b"}) {
    const KernelCache cache(folder, base::Logger());
    cache.keep("name", 5, "image");
    const auto kept = cache.find("name", 5);
    EXPECT_OR(kept && *kept == "image", "nothing is kept in " + folder);
  }
  fs::current_path("/");
  fs::remove_all(root);
}

}  // namespace
}  // namespace hvdlite::device::kernel_cache_test
