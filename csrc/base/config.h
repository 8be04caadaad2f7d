// The engine's knobs as a plain struct, filled by the C ABI; hvdlite/config.py documents each and reads the environment.
// Thread: constant after creation. Owns: strings. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/log.h"

namespace hvdlite::base {

struct Config {
  std::size_t fusion_threshold = std::size_t{64} << 20;
  double cycle_time_ms = 0.2;
  std::size_t cache_capacity = 1024;
  std::size_t segment_bytes = std::size_t{256} << 10;
  std::size_t recursive_doubling_max_bytes = std::size_t{16} << 10;
  std::size_t tile_bytes = std::size_t{512} << 10;
  std::size_t streaming_bytes = std::size_t{64} << 20;
  std::size_t message_split_bytes = std::size_t{1} << 30;
  std::size_t remote_message_bytes = std::size_t{32} << 10;
  double spin_us = -1.0;
  double deadlock_timeout = 1.0;
  double stall_check_time_seconds = 60;
  double stall_shutdown_time_seconds = 1800;
  double failure_linger = 1.5;
  double peer_timeout = 10.0;
  std::size_t flight_recorder_size = 64;
  std::string flight_recorder_folder;  // empty: no files
  std::size_t output_cache_bytes = std::size_t{256} << 20;
  bool shared_outputs = true;
  bool deterministic = false;
  LogLevel log_level = LogLevel::kWarning;
  bool log_timestamps = true;
  std::string shared_memory = "auto";  // auto memfd shm off: what ranks of one host share
  std::string tile_stores = "auto";    // auto ordinary streaming
  std::string kernel_isa = "auto";
  std::string allreduce_algorithm = "auto";
  std::string reducescatter_algorithm = "auto";
  std::string allgatherv_algorithm = "auto";
  std::string broadcast_algorithm = "auto";
  std::string alltoallv_algorithm = "auto";
  std::string barrier_algorithm = "auto";
  std::string gpu_route = "auto";  // auto nccl staged
  std::string cuda_library = "libcuda.so.1";
  std::string nccl_library;
  std::string nvrtc_library;
  std::string kernel_cache = "auto";
  std::size_t gpu_cache_bytes = std::size_t{1} << 30;
  bool nccl_float32_sums = false;
  bool check_finite = false;
  bool join_refuses_others = false;
};

}  // namespace hvdlite::base
