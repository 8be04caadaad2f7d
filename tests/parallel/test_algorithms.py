"""Every algorithm by force, through the whole stack: a knob picks it, and the results are those of any other."""

import functools

import numpy as np
import pytest
from support.cases import Op, Reduction
from support.world import REPEATS, WORLD, check, distinct, inputs, shuffled

from hvdlite.dtypes import DType
from hvdlite.knobs import KNOBS

# Three ranks take every way through the engine. tests/unit/test_collectives.py runs the algorithms on other numbers of ranks.
RANKS = (3,)
MORE_RANKS = (1, 2, 4)
RANK, SIZE = WORLD.rank, WORLD.size
CHOICES = [
    (knob.variable, choice)
    for knob in KNOBS
    if knob.name.endswith("_algorithm")
    for choice in knob.choices[1:]
    if choice != "hierarchical"  # needs several hosts: tests/hosts
]
OTHER_KNOBS = [
    ("HVDLITE_DETERMINISTIC", "1"),
    ("HVDLITE_FUSION_THRESHOLD", "0"),
    ("HVDLITE_FUSION_THRESHOLD", "1000"),
    ("HVDLITE_CACHE_CAPACITY", "0"),
    ("HVDLITE_CACHE_CAPACITY", "2"),
    ("HVDLITE_SEGMENT_BYTES", "100"),
    ("HVDLITE_MESSAGE_SPLIT_BYTES", "1000"),
    ("HVDLITE_CYCLE_TIME", "5"),
    ("HVDLITE_SPIN_US", "0"),
    ("HVDLITE_KERNEL_ISA", "scalar"),
]
REDUCTIONS = [Reduction(DType.FLOAT32, Op.SUM), Reduction(DType.BFLOAT16, Op.AVERAGE), Reduction(DType.INT16, Op.MIN)]


COUNTS = (0, 1, SIZE + 1, 257, 20_000)


@functools.cache
def everyones(repeat):
    """All ranks' inputs by reduction and count, which every knob gets."""
    return {(reduction, count): inputs(reduction, (count,), repeat) for reduction in REDUCTIONS for count in COUNTS}


@pytest.mark.parametrize(("variable", "value"), CHOICES + OTHER_KNOBS, ids=lambda text: text.removeprefix("HVDLITE_"))
def test_all_collectives(ended, monkeypatch, variable, value):
    hvd = ended
    monkeypatch.setenv(variable, value)
    hvd.init()
    for repeat in REPEATS:
        everyone = everyones(repeat)
        handles = {
            key: hvd.allreduce_async(arrays[RANK], name=f"{key[0]}.{key[1]}", op=int(key[0].op))
            for key, arrays in shuffled(list(everyone.items()), repeat)
        }
        moved = hvd.allgather_async(distinct(RANK, (RANK + 1, 700)), name="gather")
        exchanged = hvd.alltoall_async(distinct(RANK, (SIZE * 3, 50)), name="exchange")
        scattered = hvd.reducescatter_async(np.full((2 * SIZE + 1, 300), RANK, "int32"), op=hvd.Sum, name="scatter")
        sent = hvd.broadcast_async(distinct(RANK, (30_001,), salt=repeat), repeat % SIZE, name="cast")
        for key, arrays in everyone.items():
            check(handles[key].synchronize(), arrays, key[0], f"{key[0]} of {key[1]}")
        gathered = np.concatenate([distinct(rank, (rank + 1, 700)) for rank in range(SIZE)])
        np.testing.assert_array_equal(moved.synchronize(), gathered)
        rows = slice(3 * RANK, 3 * RANK + 3)
        wanted = np.concatenate([distinct(rank, (SIZE * 3, 50))[rows] for rank in range(SIZE)])
        np.testing.assert_array_equal(exchanged.synchronize()[0], wanted)
        out = scattered.synchronize()
        assert out.shape == (2 + (RANK == 0), 300)
        assert set(out.ravel().tolist()) == {sum(range(SIZE))}
        np.testing.assert_array_equal(sent.synchronize(), distinct(repeat % SIZE, (30_001,), salt=repeat))
        hvd.barrier()
