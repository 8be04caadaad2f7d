"""The door for JAX, and what compiled programs of XLA call."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "xla-postscale",
        "a compiled program's results are not scaled afterwards",
        "hvdlite/xla.py",
        "(float(group.prescale), float(group.postscale))",
        "(float(group.prescale), 1.0)",
        (*guards.JAX, "tests/unit/test_xla.py"),
    ),
    Mutant(
        "xla-root",
        "a compiled program broadcasts from rank 0 whatever the root",
        "csrc/bindings/xla/call.cc",
        "    request.root = reader.number<std::int32_t>();\n",
        "    reader.number<std::int32_t>();\n",
        guards.JAX,
    ),
    Mutant(
        "xla-weight",
        "in a compiled program all ranks count alike",
        "csrc/bindings/xla/call.cc",
        "if (has_weight(request)) request.weight = weight;",
        "if (has_weight(request)) request.weight = 1;",
        guards.JAX_WEIGHT,
    ),
)
