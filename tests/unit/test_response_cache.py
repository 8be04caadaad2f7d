"""The response cache while it is full: lines are known, new and given to other names in one list of decisions."""

import random

import numpy as np
import pytest
from support.limits import dawdle
from support.thread_ranks import ALLREDUCE, SUM, Rank, run_ranks

NAMES = 6
STEPS = 400


@pytest.mark.parametrize("size", [2, 3])
def test_known_and_new_names_in_one_list(size):
    """Half of the names in each step: about as many are in the cache as have to push another one out."""

    def body(rank: Rank):
        common, own = random.Random(1), random.Random(2 + rank.rank)
        for step in range(STEPS):
            chosen = common.sample(range(NAMES), NAMES // 2)
            own.shuffle(chosen)  # announcements of several ranks arrive in any order
            inputs = {i: np.full(3, 100 * step + 10 * i + rank.rank, np.int64) for i in chosen}
            outputs = {i: np.empty_like(inputs[i]) for i in chosen}
            handles = []
            for i in chosen:
                handles.append(rank.start(ALLREDUCE, f"n{i}", inputs[i], outputs[i], op=SUM))
                if own.random() < 0.5:  # so that one rank asks last for a known name, and another for a new one
                    dawdle(own.randrange(100))
            for handle in handles:
                handle.result()
            for i in chosen:
                assert (outputs[i] == size * (100 * step + 10 * i) + size * (size - 1) // 2).all()

    run_ranks(size, body, {"cache_capacity": NAMES // 2 + 1, "shared_memory": "off", "cycle_time": 0.0})
