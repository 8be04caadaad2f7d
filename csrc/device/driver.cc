// The steps in which the driver is opened. In this order each cause of a failure gets an error text with its own remedy:
//
//    1  the file              no driver is installed, or it is elsewhere
//    2  cuDriverGetVersion    the driver is too old; this function works before cuInit
//    3  all symbols           the file is no CUDA driver
//    4  cuInit                the driver cannot be used by this process (remedy_of has the causes)
//    5  cuDeviceGetCount      the number is 0
//
// Step 2 comes before step 3. Otherwise the error for a driver that is too old would name a missing function instead of the
// version.
//
// HVDLITE_CUDA_FUNCTIONS (cuda_abi.h) lists each function's type and symbol. A function that is added to the list is also
// looked up here.
#include "device/driver.h"

#include "base/error.h"

namespace hvdlite::device {

using base::Error;
using base::ErrorCode;

namespace {

constexpr int kOldestDriver = 11000;  // the oldest version with all functions of cuda_abi.h

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// The remedy for an error of cuInit.
const char* remedy_of(cuda::Result result) {
  switch (result) {
    case cuda::kNoDevice:
      return "this process sees no GPU; nvidia-smi and CUDA_VISIBLE_DEVICES say why";
    case cuda::kStubLibrary:
      return "this is the toolkit's stub, not a driver; take its folder out of LD_LIBRARY_PATH";
    case cuda::kNotInitialized:
      return "a process forked from one that used CUDA cannot use CUDA; start the process by spawn";
    case cuda::kSystemNotReady:
      return "on machines with NVSwitch the service nvidia-fabricmanager must run";
    case cuda::kDriverMismatch:
      return "the driver was updated while its old kernel module is loaded; reboot";
    default:
      return "check that nvidia-smi works on this machine";
  }
}

}  // namespace

Driver::Driver(const Candidates& candidates)
    : library_("the CUDA driver", candidates, "HVDLITE_CUDA_LIBRARY") {
  library_.require(&functions_.DriverGetVersion, "cuDriverGetVersion");
  // The toolkit's stub may refuse this call. Then cuInit gives the reason.
  if (functions_.DriverGetVersion(&version_) == cuda::kSuccess && version_ < kOldestDriver) {
    throw Error(ErrorCode::kUnsupported, "the CUDA driver (" + library_.path() + ") knows CUDA " +
                                             version_text(version_) + ", hvdlite needs " +
                                             version_text(kOldestDriver) + "; update the driver");
  }
#define HVDLITE_CUDA_REQUIRE(name, symbol, type) library_.require(&functions_.name, symbol);
  HVDLITE_CUDA_FUNCTIONS(HVDLITE_CUDA_REQUIRE)
#undef HVDLITE_CUDA_REQUIRE
  initialize();
}

void Driver::initialize() {
  const cuda::Result result = functions_.Init(0);
  if (result != cuda::kSuccess) {
    throw Error(ErrorCode::kUnsupported, "the CUDA driver (" + library_.path() +
                                             ") cannot be used: " + describe(result, "cuInit") +
                                             "; " + remedy_of(result));
  }
  // Asked again, with a check: the constructor has ignored an error of the first call.
  check(functions_.DriverGetVersion(&version_), "cuDriverGetVersion");
  check(functions_.DeviceGetCount(&devices_), "cuDeviceGetCount");
  // If there is no GPU, usually cuInit has already failed with kNoDevice.
  if (devices_ == 0) {
    throw Error(ErrorCode::kUnsupported, "the CUDA driver (" + library_.path() +
                                             ") has no GPU: " + remedy_of(cuda::kNoDevice));
  }
}

// If the driver does not know the error, both pointers are null, and the text has the error's number. All errors about stream
// capture have numbers from kCaptureUnsupported to kCaptureWrongThread. For these the driver's text does not tell a user of
// hvdlite what to do, so the remedy is added.
std::string Driver::describe(cuda::Result result, const char* function) const {
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.GetErrorName(result, &name);
  functions_.GetErrorString(result, &text);
  std::string described = std::string(function) + " failed: " +
                          (name != nullptr ? name : "error " + std::to_string(result));
  if (text != nullptr) described += std::string(" (") + text + ")";
  if (result >= cuda::kCaptureUnsupported && result <= cuda::kCaptureWrongThread) {
    described +=
        "; a stream is being captured into a CUDA graph: keep hvdlite's operations out of the "
        "capture";
  }
  return described;
}

void Driver::fail(cuda::Result result, const char* function) const {
  throw Error(ErrorCode::kSystem, describe(result, function));
}

}  // namespace hvdlite::device
