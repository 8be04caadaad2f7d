"""The door for JAX, and what compiled programs of XLA call."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "xla-postscale",
        "a compiled program's results are not scaled afterwards",
        "hvdlite/xla.py",
        "float(group.prescale), float(group.postscale), len(names))",
        "float(group.prescale), 1.0, len(names))",
        (*guards.JAX, "tests/unit/test_xla.py"),
    ),
    Mutant(
        "xla-root",
        "a compiled program broadcasts from rank 0 whatever the root",
        "csrc/bindings/xla/call.cc",
        "  request.root = group.root;\n",
        "  request.root = 0;\n",
        guards.JAX,
    ),
    Mutant(
        "xla-first-error",
        "of several errors of one call the last one is told",
        "csrc/bindings/xla/call.cc",
        "if (!first.failed()) first = std::move(outcome);",
        "first = std::move(outcome);",
        guards.JAX,
    ),
    Mutant(
        "jax-all-wait-here",
        "a collective of which there are several in a program holds up XLA's thread",
        "csrc/bindings/jax/collective.cc",
        "return hvdlite::jax::handle(frame, hvdlite::jax::Waiting::kElsewhere);",
        "return hvdlite::jax::handle(frame, hvdlite::jax::Waiting::kHere);",
        guards.JAX,
    ),
    Mutant(
        "jax-denormals",
        "a program goes on with other rules for denormal numbers where it has waited in a thread",
        "csrc/bindings/jax/collective.cc",
        "    std::fesetenv(&environment);\n",
        "",
        guards.JAX,
    ),
)
