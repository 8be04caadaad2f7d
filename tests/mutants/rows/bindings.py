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
        "work-not-parked",
        "the memory of a work that is let go in flight goes with it",
        "csrc/bindings/python/work.cc",
        "if (work.stage == Stage::kInFlight) engine_of(work).keep_dropped(self);",
        "",
        guards.PLAIN_CALLS,
    ),
    Mutant(
        "work-memory-in-use",
        "memory that a failure has left in use is freed with its work",
        "csrc/bindings/python/work.cc",
        "if (in_use) Py_XINCREF(work.memory);",
        "",
        (*guards.PLAIN_CALLS, "tests/unit/test_handles.py"),
    ),
    Mutant(
        "work-signal-at-the-end",
        "a signal that comes as the last operation ends is looked for when the wait has returned",
        "csrc/bindings/python/engine.cc",
        "    if (PyErr_CheckSignals() != 0) throw nb::python_error();\n    if (outcome.ended",
        "    if (!outcome.ended && PyErr_CheckSignals() != 0) throw nb::python_error();\n    if (outcome.ended",
        ("tests/unit/test_wait_many.py",),
    ),
    Mutant(
        "hook-counts-twice",
        "a gradient that comes twice in one pass counts twice in its bucket",
        "csrc/bindings/python/passes.cc",
        "if (gradient.stamp == stamp_) {  // another part of the same gradient",
        "if (gradient.stamp == stamp_ && is_launched(gradient.bucket)) {",
        (*guards.PASSES, "tests/adapters/torch/test_passes.py"),
    ),
    Mutant(
        "hook-dirty-forgotten",
        "a reset forgets that a gradient was this rank's alone",
        "csrc/bindings/python/passes.cc",
        "gradient.dirty = gradient.dirty && zeros_are_left;",
        "gradient.dirty = false;",
        (*guards.PASSES, *guards.TORCH_UNUSED, "tests/adapters/torch/test_broken_passes.py"),
    ),
    Mutant(
        "nested-pass-eager",
        "complete buckets are launched in a nested pass, though parts of their gradients are still to come",
        "csrc/bindings/python/passes.cc",
        "    eager_ = false;\n",
        "",
        (*guards.PASSES, *guards.TORCH_PASSES),
    ),
    Mutant(
        "landed-but-aside",
        "a gradient that was reduced in two parts is stored without its reduced part",
        "csrc/bindings/python/launch.cc",
        "return gradient->reduced_part.is_none() && gradient->sparse_dim.is_none()",
        "return gradient->sparse_dim.is_none()",
        (*guards.HOOKS, "tests/adapters/torch/test_passes.py"),
    ),
)
