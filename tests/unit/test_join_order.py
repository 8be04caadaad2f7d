"""Joins among operations in flight: what a rank asked for before it joined counts, whatever overtakes what."""

import random

import numpy as np
import pytest
from support.seeds import seeds
from support.thread_ranks import ALLREDUCE, AVERAGE, MAX, SUM, engines, in_threads

SIZE = 4
ROUNDS = 30


def plan(seed: int) -> list[tuple[int, int, set[int]]]:
    """Operations of a round: number, op, and the ranks that ask for it."""
    draw = random.Random(seed)
    return [
        (number, draw.choice((SUM, AVERAGE, MAX)), set(draw.sample(range(SIZE), draw.randint(1, SIZE))))
        for number in range(draw.randint(1, 8))
    ]


def right(op: int, askers: set[int], uncounted: set[int]) -> float:
    values = [float(10 ** (rank + 1)) for rank in askers]
    if op == MAX:
        return max(values)
    return sum(values) / (SIZE - len(uncounted - askers) if op == AVERAGE else 1)


# 300 elements do not ride with the announcement, 3 do.
@pytest.mark.parametrize("count", [3, 300])
@pytest.mark.parametrize("hosts", [None, [0, 0, 1, 1]], ids=["one host", "two hosts"])
def test_asked_before_joining(hosts, count):
    def body(rank):
        for seed in seeds(range(ROUNDS)):
            operations = plan(seed)
            uncounted = set(random.Random(-1 - seed).sample(range(SIZE), seed % (SIZE + 1)))
            mine = [operation for operation in operations if rank.rank in operation[2]]
            random.Random(100 * seed + rank.rank).shuffle(mine)
            flights = []
            for number, op, askers in mine:
                array = np.full(count, 10.0 ** (rank.rank + 1))
                # Half of the names return in the next round.
                name = f"{number}" if number % 2 else f"{seed}.{number}"
                flights.append((rank.start(ALLREDUCE, name, array, array, op=op), array, op, askers))
            rank.join(root=int(rank.rank in uncounted))
            for handle, array, op, askers in flights:
                handle.result()
                np.testing.assert_allclose(array, right(op, askers, uncounted), rtol=1e-15, err_msg=f"{seed} {op} {askers}")

    with engines(SIZE, hosts=hosts) as ranks:
        in_threads(ranks, body)
