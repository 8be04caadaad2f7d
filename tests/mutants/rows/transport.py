"""Messages between ranks, bells, and what a host's ranks share."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "mpi-parts-in-one-place",
        "the parts of a message that is too long for MPI are all received in the first one's place",
        "csrc/transport/mpi_transport.cc",
        "return mpi_->irecv(start + offset, count, peer,",
        "return mpi_->irecv(start, count, peer,",
        guards.MPI,
    ),
    Mutant(
        "mpi-refusal-before-the-reason",
        "where MPI refuses another receive, the messages that have come are not read",
        "csrc/transport/mpi_transport.cc",
        "    const int refused = post_frame_receives();\n",
        "    const int refused = 0;\n    check(post_frame_receives(), rank_, kReceiving);\n",
        ("tests/unit/test_native_cases.py",),
    ),
    Mutant(
        "mpi-half-made",
        "a transport that cannot be made leaves receives in its freed memory",
        "csrc/transport/mpi_transport.cc",
        "    close();  // withdraws the receives that are posted\n",
        "",
        ("tests/unit/test_native_cases.py",),
    ),
    Mutant(
        "results-kept-pages",
        "memory of results is given back without its pages",
        "csrc/transport/result_memory.cc",
        "madvise(data, bytes, MADV_REMOVE);",
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
    Mutant(
        "mail-overtakes",
        "a control message overtakes those that wait for room in the ring",
        "csrc/transport/host_mail.cc",
        "box.unsent.push_back(std::move(message));",
        "box.unsent.push_front(std::move(message));",
        guards.MESSAGES,
    ),
    Mutant(
        "mail-room-untold",
        "who waits for room in a ring is not rung for when there is some",
        "csrc/transport/host_mail.cc",
        "if (box.in.starves_writer()) ring_(from);",
        "",
        guards.MESSAGES,
    ),
    Mutant(
        "mail-starves-in-silence",
        "who finds no room in a ring does not say so",
        "csrc/transport/mail_ring.h",
        "for (const std::uint32_t says : {0U, 1U}) {",
        "for (const std::uint32_t says : {0U, 0U}) {",
        guards.MESSAGES,
    ),
    Mutant(
        "payloads-of-others",
        "the memory of whatever process has the sender's number is received",
        "csrc/transport/payload_stream.cc",
        " || proof != header_.proof) {",
        ") {",
        guards.MESSAGES,
    ),
    Mutant(
        "payloads-free-early",
        "a send ends before the receiver has read its memory",
        "csrc/transport/payload_stream.cc",
        "if (room() < ring_.capacity) return any ? Progress::kSome : Progress::kNone;",
        "",
        guards.MESSAGES,
    ),
)
