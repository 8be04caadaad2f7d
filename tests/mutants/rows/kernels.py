"""Additions of elements, in every instruction set that is built, and copies."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "kernel-prescale-first-only",
        "only the first rank's floats are scaled before they are added",
        "csrc/kernels/reduce_impl.h",
        "const V value = U::template read<T, A>(at<T>(in, i)) * factor;",
        "const V value = U::template read<T, A>(at<T>(in, i));",
        guards.KERNELS,
    ),
    Mutant(
        "kernel-integers-undivided",
        "an Average of integers that is scaled afterwards is not divided",
        "csrc/kernels/reduce_impl.h",
        "static_cast<double>(value) * postscale / static_cast<double>(divisor)",
        "static_cast<double>(value) * postscale",
        guards.KERNELS,
    ),
    Mutant(
        "kernel-saturation",
        "the first number above the largest integer is not held back",
        "csrc/kernels/reduce_units.h",
        "if (value >= static_cast<double>(kHighest)) return kHighest;",
        "if (value > static_cast<double>(kHighest)) return kHighest;",
        guards.KERNELS,
    ),
    Mutant(
        "kernel-bfloat16-ties",
        "bfloat16 in registers rounds ties up, not to even",
        "csrc/kernels/reduce_units.h",
        "const Bits rounded = bits + 0x7fffu + (bits >> 16 & 1u);",
        "const Bits rounded = bits + 0x8000u;",
        guards.KERNELS,
    ),
    Mutant(
        "kernel-float16-overflow",
        "the float that lies halfway to infinity stays the largest float16",
        "csrc/base/half.h",
        "} else if (magnitude >= 0x477ff000u) {",
        "} else if (magnitude > 0x477ff000u) {",
        guards.KERNELS,
    ),
    Mutant(
        "kernel-avx512-lesser",
        "AVX-512 takes the other operand where a Min of floats meets a NaN",
        "csrc/kernels/reduce_avx512.cc",
        "return _mm512_min_ps(a, b);",
        "return _mm512_min_ps(b, a);",
        guards.KERNELS,
    ),
    Mutant(
        "kernel-avx2-unsigned",
        "AVX2 widens unsigned 16-bit integers as if they were signed",
        "csrc/kernels/reduce_avx2.cc",
        "_mm256_cvtepu16_epi64(",
        "_mm256_cvtepi16_epi64(",
        guards.KERNELS,
    ),
    Mutant(
        "copy-head",
        "a copy that ends before the next cache line goes on to that line",
        "csrc/kernels/stream.cc",
        "const std::size_t head = std::min(gap, bytes);",
        "const std::size_t head = gap;",
        guards.COPIES,
    ),
)
