"""Messages between ranks, bells, and what a host's ranks share."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "mpi-parts-in-one-place",
        "the parts of a message that is too long for MPI are all received in the first one's place",
        "csrc/transport/mpi_transport.cc",
        "return mpi_->irecv(start + offset, count, peer, static_cast<int>(tag) + 1, comm_, request);",
        "return mpi_->irecv(start, count, peer, static_cast<int>(tag) + 1, comm_, request);",
        guards.MPI,
    ),
    Mutant(
        "frames-not-cut",
        "the last frame of a message may carry more than was announced",
        "csrc/transport/frames.h",
        "if (frame.size() > expected_ - bytes_.size()) {",
        "if (frame.size() > expected_) {",
        guards.RECEIVED,
    ),
    Mutant(
        "page-silent-leaving",
        "a rank that leaves in good order does not say so on the control page",
        "csrc/transport/control_page.cc",
        "  slot(local_rank_).state.store(kLeft, std::memory_order_release);\n",
        "",
        guards.ENDINGS,
    ),
    Mutant(
        "bell-wakes-nobody",
        "a bell is rung without waking who sleeps on it",
        "csrc/transport/bell.h",
        "base::futex_wake_all(rung_, base::FutexScope::kHost);",
        "",
        guards.WAITING,
    ),
    Mutant(
        "results-kept-pages",
        "memory of results is given back without its pages",
        "csrc/transport/result_memory.cc",
        "madvise(data, range.bytes, MADV_REMOVE);",
        "",
        (*guards.OPEN_RESULTS, *guards.OUTPUTS),
    ),
    Mutant(
        "results-shared-by-child",
        "a forked child goes on sharing the results that it inherits",
        "csrc/transport/result_memory.cc",
        "if (!std::exchange(block.in_use, false)) continue;",
        "if (std::exchange(block.in_use, false)) continue;",
        (*guards.OPEN_RESULTS, *guards.OUTPUTS),
    ),
    Mutant(
        "memory-of-another",
        "shared memory that others may open is used all the same",
        "csrc/transport/shared_memory.cc",
        " || (info.st_mode & 0777) != kMode) {",
        ") {",
        ("tests/unit/test_security.py", "tests/fault/test_openings.py"),
    ),
)
