"""The native module: what crosses from Python, and calls with plain tensors."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "short-average-ignored",
        "a call with a plain tensor ignores the argument `average`",
        "csrc/bindings/python/plain_calls.cc",
        "return average.is_none() && (op.is_none() || read_int(op, request.op)) &&",
        "return (op.is_none() || read_int(op, request.op)) &&",
        (*guards.PLAIN_CALLS, "tests/parallel/test_allreduce.py"),
    ),
    Mutant(
        "hook-counts-twice",
        "a gradient that comes twice in one pass counts twice in its bucket",
        "csrc/bindings/python/gradients.cc",
        "if (number != pass.task || slot.stamp == pass.stamp) return Answer::kFalse;",
        "if (number != pass.task) return Answer::kFalse;",
        (*guards.HOOKS, "tests/adapters/torch/test_passes.py"),
    ),
    Mutant(
        "hook-dirty-forgotten",
        "a reset forgets that a gradient was this rank's alone",
        "csrc/bindings/python/gradients.cc",
        "slot->dirty = slot->dirty != 0 && has_grad ? 1 : 0;",
        "slot->dirty = 0;",
        (*guards.HOOKS, *guards.TORCH_UNUSED, "tests/adapters/torch/test_broken_passes.py"),
    ),
)
