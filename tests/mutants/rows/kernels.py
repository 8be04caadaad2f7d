"""Additions of elements, in every instruction set that is built, and copies."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
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
        "codec-fp8-ties",
        "fp8 rounds ties up, not to even",
        "csrc/kernels/codec_impl.h",
        "magnitude + 0x7ffffU + (magnitude >> 20 & 1U)",
        "magnitude + 0x80000U",
        guards.CODECS,
    ),
    Mutant(
        "codec-inf-is-zero",
        "a block with a value that is not finite decodes to zeros",
        "csrc/kernels/codec_impl.h",
        "write_raw(out, bits < kLeast ? 0U : kNan);",
        "write_raw(out, 0U);",
        guards.CODECS,
    ),
)
