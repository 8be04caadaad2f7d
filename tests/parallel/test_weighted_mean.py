"""`weight=` of allreduces: the mean over batches of unequal sizes."""

import numpy as np
import pytest
from support.world import REPEATS, WORLD

RANK, SIZE = WORLD.rank, WORLD.size
COUNTS = [0, 5, 2, 1][:SIZE]  # of samples


def part(rank, salt=0):
    return np.random.default_rng([rank, salt]).standard_normal((COUNTS[rank], 6))


def test_every_form_of_the_call_gives_the_mean_over_all_samples(hvd):
    for repeat in REPEATS:
        with np.errstate(invalid="ignore"):
            mine = part(RANK, repeat).sum(0) / COUNTS[RANK]  # nan on the rank without any
        whole = np.concatenate([part(rank, repeat) for rank in range(SIZE)])
        wanted = whole.mean(0) if len(whole) else np.zeros(6)
        outputs = [
            hvd.allreduce(mine, weight=COUNTS[RANK], name="call"),
            hvd.allreduce_async(mine, weight=COUNTS[RANK]).synchronize(),
            hvd.allreduce_(mine.copy(), weight=np.int64(COUNTS[RANK])),
            hvd.allreduce_async_(mine.copy(), weight=COUNTS[RANK]).synchronize(),
            hvd.grouped_allreduce([mine, 2 * mine], weight=COUNTS[RANK])[1] / 2,
            hvd.grouped_allreduce_async([mine], weight=COUNTS[RANK], name="group").synchronize()[0],
            hvd.grouped_allreduce_([mine.copy()], weight=COUNTS[RANK])[0],
            hvd.grouped_allreduce_async_([mine.copy()], weight=COUNTS[RANK]).synchronize()[0],
        ]
        for output in outputs:
            np.testing.assert_allclose(output, wanted, rtol=1e-13)
            assert len(set(WORLD.allgather(output.tobytes()))) == 1


def test_a_loop_over_unequal_numbers_of_batches_ends_with_join(hvd):
    for step in range(RANK + 1):
        out = hvd.allreduce(np.full(3, RANK + 1.0), weight=RANK + 2.0, name=f"step{step}")
        present = range(step, SIZE)
        total = sum(rank + 2.0 for rank in present)
        np.testing.assert_allclose(out, sum((rank + 1.0) * (rank + 2.0) for rank in present) / total)
    hvd.join()


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf"), pytest.param(10**400, id="huge"), True, "5", None], ids=str)
def test_what_is_no_weight(hvd, weight):
    if weight is None:
        assert hvd.allreduce(float(RANK), weight=None) == (SIZE - 1) / 2
        return
    with pytest.raises(
        hvd.InvalidArgumentError, match="a weight is a finite number of 0 or more, such as the number of samples"
    ):
        hvd.allreduce(1.0, weight=weight)


@pytest.mark.parametrize("op", ["Sum", "Adasum", "Min", "Max", "Product"])
def test_other_operators_refuse_a_weight(hvd, op):
    with pytest.raises(hvd.InvalidArgumentError, match=f"a weight needs op=Average, not {op}"):
        hvd.grouped_allreduce([np.ones(2)], op=getattr(hvd, op), weight=1)
