// The mode in which a thread computes floats. Frameworks let some of their threads flush subnormal numbers to zero
// (torch.set_flush_denormal, the threads of TensorFlow and XLA), and such a thread may drive the engine. Without this class the
// bits of a result would depend on which thread computes it, and ranks would disagree.
// Thread: the one that makes the object also ends it. Owns: this thread's mode while the object lives. Blocks: no. Throws:
// nothing.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hvdlite::kernels {

// While the object lives, this thread rounds to nearest, ties to even, and keeps subnormals, in operands and in results.
class StandardFloats {
 public:
  StandardFloats() : before_(mode()) {
    if ((before_ & kDeviations) != 0) set_mode(before_ & ~kDeviations);
  }
  ~StandardFloats() {
    if ((before_ & kDeviations) != 0) set_mode(before_);
  }
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

 private:
#if defined(__x86_64__)
  // The fields of MXCSR that are 0 in the standard mode: flush results to zero, rounding, take subnormal operands as zero.
  using Mode = unsigned;
  static constexpr Mode kDeviations = 0x8000U | 0x6000U | 0x0040U;
  static Mode mode() { return _mm_getcsr(); }
  static void set_mode(Mode mode) { _mm_setcsr(mode); }
#elif defined(__aarch64__)
  // The fields of FPCR that are 0 in the standard mode: default NaN, flush to zero, rounding, flush to zero for 16-bit floats.
  using Mode = std::uint64_t;
  static constexpr Mode kDeviations = 1U << 25 | 1U << 24 | 3U << 22 | 1U << 19;
  static Mode mode() {
    Mode mode = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void set_mode(Mode mode) { __asm__ volatile("msr fpcr, %0" ::"r"(mode)); }
#else
#error "This processor's register with the mode of floats is missing here."
#endif

  const Mode before_;
};

}  // namespace hvdlite::kernels
