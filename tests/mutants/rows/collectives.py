"""The algorithms: tiles in shared memory, rings, lanes between hosts, and which of them is taken."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "tiles-fill-overtakes",
        "a tile's buffer is filled again while others may read it",
        "csrc/collectives/shared_collective.cc",
        "if (tile > 0 && !channel().all_done(tile - 1)) return false;\n  puts_past_",
        "if (tile > 1 && !channel().all_done(tile - 2)) return false;\n  puts_past_",
        guards.IN_SHARED_MEMORY,
    ),
    Mutant(
        "tiles-drain-unreduced",
        "results are read from the others' buffers before they have reduced them",
        "csrc/collectives/shared_collective.cc",
        "if (drained_ == reduced_ || !channel().all_reduced(count)) return false;",
        "if (drained_ == reduced_) return false;",
        guards.IN_SHARED_MEMORY,
    ),
    Mutant(
        "ring-in-place",
        "a finished piece is received over this rank's contribution before that is sent",
        "csrc/collectives/ring_reduction.cc",
        "if (hop == size - 1 && !send_done(0)) return;",
        "",
        guards.ALGORITHMS,
    ),
    Mutant(
        "allgather-sends-early",
        "a segment is passed on when its receive is posted, not when it is there",
        "csrc/collectives/allgatherv_ring.cc",
        "std::min(num_sends_, own_segments_ + receives_.done())",
        "std::min(num_sends_, own_segments_ + receives_.posted())",
        guards.ALGORITHMS,
    ),
    Mutant(
        "barrier-one-step-less",
        "a barrier of messages takes one step too few",
        "csrc/collectives/barrier_dissemination.cc",
        "while ((std::int64_t{1} << steps_) < comm_.size()) ++steps_;",
        "while ((std::int64_t{2} << steps_) < comm_.size()) ++steps_;",
        guards.ALGORITHMS,
    ),
    Mutant(
        "adasum-absent",
        "a rank without a value gives Adasum what was in memory",
        "csrc/collectives/allreduce_adasum.cc",
        "std::fill_n(place, part.count, A(0));",
        "std::fill_n(place, 0, A(0));",
        guards.ADASUM,
    ),
    Mutant(
        "arena-absent",
        "in an arena, a rank without a value adds what lies in its place",
        "csrc/collectives/allreduce_push.cc",
        "if (part.input == nullptr) {",
        "if (part.output == nullptr) {",
        guards.IN_ARENAS,
    ),
    Mutant(
        "turn-ignored",
        "an operation does not wait for its turn on the memory that a set shares",
        "csrc/collectives/shared_channel.h",
        "return turn == turn_ && is_free();",
        "return turn >= turn_ && is_free();",
        guards.IN_SHARED_MEMORY,
    ),
    Mutant(
        "deterministic-ignored",
        "HVDLITE_DETERMINISTIC does not keep small allreduces from recursive doubling",
        "csrc/collectives/select.cc",
        "if ((shape.ranks <= 2 || !selection.deterministic) &&\n      bytes",
        "if (bytes",
        ("tests/unit/test_determinism.py", *guards.ALGORITHMS),
    ),
)
