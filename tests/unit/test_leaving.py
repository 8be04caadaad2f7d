"""A rank that leaves with an operation under way: the others get the whole result or an error, all alike.

tests/sim (moments) has every moment between two passes; here threads choose others.
"""

import random
import time

import numpy as np
import pytest
from support.thread_ranks import ALLREDUCE, Rank, engines, in_threads

from hvdlite.errors import AbortedError

TURNS = 15
LOG_ENTRIES = 16384  # of a ledger in shared memory (ledger.h)


@pytest.mark.parametrize(
    ("config", "hosts"), [({}, None), ({"shared_memory": "off"}, None), ({}, [0, 1, 2])], ids=["memory", "messages", "hosts"]
)
@pytest.mark.parametrize("leaver", [0, 1])
def test_what_is_under_way_ends_alike(config, hosts, leaver):
    """The leaver's last operation may be decided just then: before, it was sometimes waited for without an end."""
    generator = random.Random(leaver)
    for _ in range(TURNS):
        delay = generator.random() * 6e-4

        def body(rank: Rank, delay: float = delay) -> object:
            rank.barrier()
            values = np.full(1000, rank.rank + 1, np.float32)
            output = np.empty_like(values)
            handle = rank.start(ALLREDUCE, "x", values, output)
            if rank.rank == leaver:
                spun = time.perf_counter() + delay
                while time.perf_counter() < spun:
                    pass
                rank.engine.shutdown()
            try:
                handle.result()
            except AbortedError:
                return "aborted"
            assert (output == 6).all()
            return "whole"

        with engines(3, config, hosts) as ranks:
            ends = in_threads(ranks, body, 120)
        others = {result for rank, result in enumerate(ends) if rank != leaver}
        assert len(others) == 1, ends


def test_an_agreement_keeps_nothing_for_a_rank_that_has_left():
    """Each refusal is an entry of the log. A rank that reads no more does not keep the log full."""

    def body(rank: Rank) -> None:
        array = np.ones(1, np.float32)
        rank.allreduce("x", array)
        if rank.rank == 1:
            rank.engine.shutdown()
            return
        for _ in range(LOG_ENTRIES + 100):
            with pytest.raises(AbortedError, match="has left"):
                rank.allreduce("y", array)

    with engines(2) as ranks:
        in_threads(ranks, body)
