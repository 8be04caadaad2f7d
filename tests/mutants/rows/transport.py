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
        "results-kept-pages",
        "memory of results is given back without its pages",
        "csrc/transport/result_memory.cc",
        "madvise(data, range.bytes, MADV_REMOVE);",
        "",
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
