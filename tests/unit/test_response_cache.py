"""The response cache while it is full: lines are known, new and given to other names in one list of decisions."""

import random
import time

import numpy as np
from support.thread_ranks import ALLREDUCE, SUM, Rank, run_ranks

NAMES = 6
RANKS = 3  # of which one is the last to ask for this name, another for that
STEPS = 150


def test_known_and_new_names_in_one_list():
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
                    time.sleep(0.001 * own.random())
            for handle in handles:
                rank.engine.wait(handle)
            for i in chosen:
                assert (outputs[i] == RANKS * (100 * step + 10 * i) + sum(range(RANKS))).all()

    run_ranks(RANKS, body, {"cache_capacity": NAMES // 2 + 1, "shared_memory": "off", "cycle_time_ms": 0.0})
