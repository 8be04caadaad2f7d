// How ranks wait for each other, by what the user asks for.
#include "transport/mpi_env.h"

#include "harness.h"

namespace hvdlite::transport::mpi_env_test {
namespace {

TEST(a_rank_polls_for_as_long_as_the_user_asks) {
  base::Config config;
  config.spin_us = 20;
  EXPECT(choose_waiting(config, 4, 2).spin == base::microseconds(20));
  config.spin_us = 1e300;
  EXPECT(choose_waiting(config, 4, 2).spin > std::chrono::hours(24));
}

}  // namespace
}  // namespace hvdlite::transport::mpi_env_test
