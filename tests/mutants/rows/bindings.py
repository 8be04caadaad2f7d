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
        "if (work.stage == Stage::kInFlight) engine_of(work).park(self);",
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
        "csrc/bindings/python/submission.cc",
        "    if (PyErr_CheckSignals() != 0) throw nb::python_error();\n    if (outcome.ended",
        "    if (!outcome.ended && PyErr_CheckSignals() != 0) throw nb::python_error();\n    if (outcome.ended",
        ("tests/unit/test_wait_many.py",),
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
