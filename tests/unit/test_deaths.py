"""A rank that dies at a random moment: the others get right results or an error that names it, and nobody hangs.

How soon, and every moment between two passes, is in tests/sim (moments, endings); here threads choose others.
"""

import random
import threading
import time

import numpy as np
import pytest
from support.seeds import seeds
from support.thread_ranks import ALLGATHER, ALLREDUCE, BARRIER, BROADCAST, Rank, engines, in_threads

from hvdlite.errors import HvdliteError, PeerLostError

DEADLINE = 120.0  # only turns a hang into a failure
WAYS = {
    "memory": ({}, False),
    "messages": ({"shared_memory": "off"}, False),
    "hosts": ({}, True),
}


class Schedule:
    """Operations without an end, drawn from a seed: each step the same on all ranks, in an order of each rank's own."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.seed = seed
        self.size = draw.choice([2, 3, 4, 5])
        self.victim = draw.randrange(self.size)
        self.delay = draw.choice([0.0, 0.002, 0.01, 0.03]) * draw.random()
        self.hosts = [draw.randrange(2) for _ in range(self.size)]
        subsets = [sorted(draw.sample(range(self.size), draw.randint(1, self.size))) for _ in range(2)]
        self.sets = [s for i, s in enumerate(subsets) if s not in subsets[:i] and len(s) < self.size]
        self.config = {"fusion_threshold": draw.choice([1, 4096, 1 << 26]), "cache_capacity": draw.choice([0, 3, 1024])}

    def step(self, number: int, rank: int) -> list[tuple[int, int, int, str]]:
        """Kind, process set (a place in members_of()), elements and name of each operation."""
        draw = random.Random(1000 * self.seed + number)
        operations = []
        for i in range(draw.randint(1, 15)):
            kind = draw.choice([ALLREDUCE, ALLREDUCE, ALLGATHER, BROADCAST, BARRIER])
            name = f"{kind}.{i}" if draw.random() < 0.7 else f"{kind}.{i}.{number}"
            operations.append((kind, draw.randrange(len(self.sets) + 1), draw.choice([0, 1, 5, 1000, 70_000]), name))
        random.Random(1000 * self.seed + 7 * number + rank).shuffle(operations)
        return operations

    def members_of(self, where: int) -> list[int]:
        return self.sets[where - 1] if where > 0 else list(range(self.size))


def work(rank: Rank, schedule: Schedule) -> None:
    """Runs steps until an error ends them; what has not failed must be right."""
    ids = [0] + [rank.add_process_set(members) for members in schedule.sets]
    me = rank.rank
    for number in range(1_000_000):
        running = []
        for kind, where, count, name in schedule.step(number, me):
            members = schedule.members_of(where)
            if me not in members:
                continue
            array = np.full(count, me + 1 + number, np.float32)
            output = np.empty_like(array) if kind in (ALLREDUCE, BROADCAST) else None
            handle = rank.start(kind, name, array, output, process_set=ids[where], root=members[-1])
            running.append((handle, kind, members, count, output))
        for handle, kind, members, count, output in running:
            result = handle.result()
            values = [member + 1 + number for member in members]
            if kind == ALLREDUCE:
                assert (output == sum(values)).all()
            elif kind == BROADCAST:
                assert (output == values[-1]).all()
            elif kind == ALLGATHER:
                assert (Rank.take(result, np.float32) == np.repeat(values, count)).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", seeds(range(15)))
def test_a_rank_that_dies_at_any_moment_is_named_and_nobody_hangs(seed, way):
    config, several_hosts = WAYS[way]
    schedule = Schedule(seed)
    ready = threading.Barrier(schedule.size + 1)

    def body(rank: Rank) -> None:
        ready.wait(DEADLINE)
        with pytest.raises(HvdliteError) as caught:
            work(rank, schedule)
        if rank.rank != schedule.victim:
            assert isinstance(caught.value, PeerLostError), caught.value
            assert f"rank {schedule.victim}" in str(caught.value)
            assert f"rank {schedule.victim}" in rank.engine.failure_cause

    def kill(rank: Rank) -> None:
        ready.wait(DEADLINE)
        time.sleep(schedule.delay)
        rank.fabric.kill(schedule.victim)

    with engines(schedule.size, {**schedule.config, **config}, schedule.hosts if several_hosts else None) as ranks:
        killer = threading.Thread(target=kill, args=(ranks[0],), daemon=True)
        killer.start()
        in_threads(ranks, body, DEADLINE)
        killer.join()
