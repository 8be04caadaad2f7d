"""The native module: what crosses from Python, and the short ways."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "short-average-ignored",
        "the short way ignores the argument `average`",
        "csrc/bindings/python/short_way.cc",
        "return average.is_none() && (op.is_none() || read_int(op, request.op)) &&",
        "return (op.is_none() || read_int(op, request.op)) &&",
        (*guards.SHORT_WAY, "tests/parallel/test_allreduce.py"),
    ),
    Mutant(
        "short-group-place",
        "the members of a group that goes the short way all say that they are its first",
        "csrc/bindings/python/short_way.cc",
        "request.group_index = static_cast<std::int32_t>(i);",
        "request.group_index = 0;",
        (*guards.SHORT_WAY, "tests/parallel/test_grouped.py"),
    ),
    Mutant(
        "short-unreleased",
        "handles of the short way are never given back",
        "csrc/bindings/python/short_way.cc",
        "  for (const std::int64_t number : numbers) hvdlite_release(engine_, number);\n  return output;",
        "  return output;",
        guards.SHORT_WAY,
    ),
    Mutant(
        "request-read-only-output",
        "memory that may only be read is taken for an output",
        "csrc/bindings/python/request.cc",
        "return convert_address(from, to, PyBUF_WRITABLE);",
        "return convert_address(from, to, PyBUF_SIMPLE);",
        guards.BINDING,
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
        "hook-zeroed-changed",
        "a gradient that the user has written to counts as the zeros that it was",
        "csrc/bindings/python/gradients.cc",
        "return grad.get() == slot.zeroed ? has_version(grad.get(), slot.zeroed_version) : Answer::kFalse;",
        "return answer(grad.get() == slot.zeroed);",
        (*guards.HOOKS, "tests/adapters/torch/test_passes.py"),
    ),
    Mutant(
        "hook-last-of-bucket",
        "the last gradient of a bucket does not launch it",
        "csrc/bindings/python/gradients.cc",
        "bucket->missing <= 1) return Answer::kFalse;",
        "bucket->missing <= 0) return Answer::kFalse;",
        (*guards.HOOKS, "tests/adapters/torch/test_training.py"),
    ),
    Mutant(
        "hook-dirty-forgotten",
        "a reset forgets that a gradient was this rank's alone",
        "csrc/bindings/python/gradients.cc",
        "slot->dirty = slot->dirty != 0 && has_grad ? 1 : 0;",
        "slot->dirty = 0;",
        (*guards.HOOKS, "tests/adapters/torch/test_unused.py"),
    ),
)
