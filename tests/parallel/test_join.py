"""Ranks that run out of data early: join, and what the others' operations give meanwhile."""

import numpy as np
import pytest
from support.world import REPEATS, WORLD

RANK, SIZE = WORLD.rank, WORLD.size


def test_all_join_at_once(hvd):
    for _ in REPEATS:
        last = hvd.join()
        assert 0 <= last < SIZE
        assert len(set(WORLD.allgather(last))) == 1


def test_the_last_rank_to_join_is_named_everywhere(hvd):
    for last in range(SIZE):
        if last == RANK:  # an allreduce ends when all others have joined
            assert hvd.allreduce(np.full(2, RANK + 1.0), name="alone", op=hvd.Sum).tolist() == [RANK + 1.0] * 2
        assert hvd.join() == last


OPS = {"Sum": sum, "Min": min, "Max": max, "Product": np.prod, "Average": lambda values: sum(values) / SIZE}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_uneven_numbers_of_steps(hvd, op, named):
    """Rank r makes r + 1 steps: step s reduces over the ranks from s on; Average divides by the size, as in Horovod."""
    for repeat in REPEATS:
        for step in range(RANK + 1):
            mine = np.full(5, 2.0 + RANK + repeat)
            name = f"{op}.{step}" if named else None
            out = hvd.allreduce(mine, name=name, op=getattr(hvd, op))
            np.testing.assert_allclose(out, OPS[op]([2.0 + rank + repeat for rank in range(step, SIZE)]), rtol=1e-15)
        assert hvd.join() == SIZE - 1 or SIZE == 1


def test_other_operations_go_on_without_the_joined(hvd):
    for _ in REPEATS:
        if RANK == 0 and SIZE > 1:
            hvd.join()
            continue
        present = list(range(1 if SIZE > 1 else 0, SIZE))
        assert hvd.allgather(np.full(2, RANK), name="g").tolist() == [rank for rank in present for _ in range(2)]
        assert hvd.broadcast(np.full(2, RANK), SIZE - 1, name="b").tolist() == [SIZE - 1] * 2
        out = hvd.reducescatter(np.full(SIZE * 2, 1.0), name="r", op=hvd.Sum)
        assert out.tolist() == [float(len(present))] * 2
        hvd.barrier()
        hvd.join()


def test_a_broadcast_from_a_joined_root_is_the_users_error(hvd):
    if SIZE == 1:
        pytest.skip("the root is the only rank")
    if RANK == 0:
        hvd.join()
    else:
        with pytest.raises(hvd.MismatchError, match="the root, rank 0, has joined and has nothing to send"):
            hvd.broadcast(np.ones(2), 0, name="lost")
        hvd.join()
    assert hvd.allreduce(np.ones(2), op=hvd.Sum, name="after").tolist() == [SIZE] * 2


def test_only_the_cpu(hvd):
    with pytest.raises(ValueError, match="join"):
        hvd.join(device=0)
