// Loading, the driver's errors, and what can be done about them.
#include "device_test.h"

using namespace device_test;
using device::Candidates;
using device::Driver;

TEST(all_places_that_were_tried_are_in_the_error) {
  const std::string text = error_of(ErrorCode::kUnsupported, [] {
    Driver driver(Candidates{"+libnowhere.so.7", "/no/such/libcuda.so.1"});
  });
  EXPECT_HAS(text, "the CUDA driver cannot be loaded");
  EXPECT_HAS(text, "HVDLITE_CUDA_LIBRARY");
  EXPECT_HAS(text, "libnowhere.so.7: not in this process so far");
  EXPECT_HAS(text, "/no/such/libcuda.so.1: cannot open shared object file");
}

TEST(the_first_that_can_be_loaded_is_taken) {
  const Driver driver(Candidates{"/no/such/libcuda.so.1", cuda_library(), "libalso.so"});
  EXPECT(driver.version() == 13000);
  EXPECT(driver.devices() == 2);
}

TEST(a_plus_takes_only_what_is_loaded) {
  const std::string only_loaded = "+" + cuda_library();
  error_of(ErrorCode::kUnsupported, [&] { Driver driver(Candidates{only_loaded}); });
  control("fake_set");  // loads it
  EXPECT(Driver(Candidates{only_loaded}).devices() == 2);
}

TEST(places_come_separated_by_colons) {
  EXPECT(
      (device::parse_candidates("+a.so:/b/c.so::d.so:") == Candidates{"+a.so", "/b/c.so", "d.so"}));
  EXPECT(device::parse_candidates("").empty());
  const std::string text = error_of(ErrorCode::kUnsupported, [] { Driver driver(Candidates{}); });
  EXPECT_HAS(text, "and is empty");
}

TEST(another_library_is_no_driver) {
  const std::string text =
      error_of(ErrorCode::kUnsupported, [] { Driver driver(Candidates{"libm.so.6"}); });
  EXPECT_HAS(text, "the CUDA driver (libm.so.6) has no cuDriverGetVersion");
}

TEST(a_machine_without_a_gpu_says_so) {
  set("gpus", "0");
  const std::string text = error_of(ErrorCode::kUnsupported, [] { open_driver(); });
  EXPECT_HAS(text, "this process sees no GPU");
}

TEST(an_old_driver_says_so) {
  set("driver", "10020");
  const std::string text = error_of(ErrorCode::kUnsupported, [] { open_driver(); });
  EXPECT_HAS(text, "knows CUDA 10.2, hvdlite needs 11.0; update the driver");
}

TEST(what_keeps_the_driver_from_starting_has_a_remedy) {
  const struct {
    int code;
    const char* remedy;
  } cases[] = {
      {cuda::kNoDevice, "CUDA_VISIBLE_DEVICES"}, {cuda::kStubLibrary, "LD_LIBRARY_PATH"},
      {cuda::kNotInitialized, "spawn"},          {cuda::kSystemNotReady, "nvidia-fabricmanager"},
      {cuda::kDriverMismatch, "reboot"},         {999, "nvidia-smi"}};
  for (const auto& one : cases) {
    fail("cuInit", 1, one.code);
    const std::string text = error_of(ErrorCode::kUnsupported, [] { open_driver(); });
    EXPECT_HAS(text, "cuInit failed: ");
    EXPECT(text.find(one.remedy) != std::string::npos);
  }
  EXPECT(open_driver()->devices() == 2);  // and the cause is gone
}

TEST(a_failed_call_is_named_with_its_error) {
  const device::DriverPtr driver = open_driver();
  const std::string text =
      error_of(ErrorCode::kSystem, [&] { driver->check(cuda::kOutOfMemory, "cuMemAlloc"); });
  EXPECT(text == "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_HAS(driver->describe(123456, "cuInit"), "cuInit failed: error 123456");
  EXPECT_HAS(driver->describe(cuda::kCaptureUnsupported, "cuMemAlloc"), "out of the capture");
}
