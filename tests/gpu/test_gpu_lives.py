"""GPU tensors over the life of a job: process sets that come and go, ranks that join, shutting down and starting again."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from support import driver_arrays
from support.pages import function_of, name_examples
from support.set_cases import FORMS, Members, added, check_form
from support.world import REPEATS, WORLD

STAND_INS = ("fakes", "host")
RANK, SIZE = WORLD.rank, WORLD.size
OPS = {"Sum": sum, "Max": max, "Average": lambda values: sum(values) / SIZE}


def members_of(process_set, salt=0):
    ranks = list(process_set.ranks)
    return Members(ranks, ranks.index(RANK), ranks[-1], salt)


@pytest.mark.parametrize(
    "name", ["allreduce", "allreduce_async_", "grouped_allreduce", "allgather", "alltoall splits", "broadcast"]
)
def test_process_sets_at_the_same_time(hvd, kind, name):
    """Sets that overlap, each with a route of its own; their operations come in any order."""
    groups = [*([[SIZE - 1]] if SIZE > 1 else []), *([[0, SIZE - 1]] if SIZE > 2 else [])]
    with added(hvd, *groups) as sets:
        for repeat in REPEATS:
            mine = [each for each in [hvd.global_process_set, *sets] if RANK in each.ranks]
            for each in mine if repeat % 2 else mine[::-1]:
                if each is not hvd.global_process_set:
                    check_form(FORMS[name], kind.door, each, members_of(each, repeat), kind.tensor, kind.host)
            check_form(
                FORMS[name], kind.door, hvd.global_process_set, members_of(hvd.global_process_set), kind.tensor, kind.host
            )


def test_sets_that_come_and_go(hvd, kind):
    """Each has communicators and buffers of its own, which go with it."""
    if SIZE == 1:
        pytest.skip("needs two ranks")
    for turn in range(4):
        with added(hvd, list(range(SIZE))[-max(1, SIZE - 1) :]) as (process_set,):
            if RANK in process_set.ranks:
                tensor = kind.tensor(np.full(1000, RANK + turn, np.float32))
                out = kind.door.allreduce(tensor, op=kind.door.Sum, process_set=process_set, name="comes")
                np.testing.assert_array_equal(kind.host(out), np.full(1000, sum(rank + turn for rank in process_set.ranks)))


@pytest.mark.parametrize("op", OPS)
def test_ranks_that_join(hvd, kind, op):
    """Rank r makes r + 1 steps; the others go on without it, and Average divides by the size."""
    for repeat in REPEATS:
        for step in range(RANK + 1):
            mine = kind.tensor(np.full(33, 2.0 + RANK + repeat))
            out = kind.host(kind.door.allreduce(mine, name=f"join.{op}.{step}", op=getattr(kind.door, op)))
            wanted = OPS[op]([2.0 + rank + repeat for rank in range(step, SIZE)])
            np.testing.assert_allclose(out, np.full(33, wanted), rtol=1e-15)
        assert hvd.join() == SIZE - 1 or SIZE == 1


def test_a_rank_that_joins_before_it_has_used_its_gpu(hvd, kind):
    """It takes part all the same, with the neutral element."""
    hvd.shutdown()
    hvd.init()
    if RANK > 0 or SIZE == 1:
        out = kind.door.allreduce(kind.tensor(np.full(5, RANK + 1.0)), op=kind.door.Sum, name="first")
        wanted = sum(rank + 1.0 for rank in range(1 if SIZE > 1 else 0, SIZE))
        np.testing.assert_array_equal(kind.host(out), np.full(5, wanted))
    hvd.join(hvd.local_rank())  # as Horovod's users write it: the GPU for its zeros; here that follows from other things


def test_shut_down_and_started_again(hvd, kind, taken):
    for turn in range(3):
        with taken():
            out = kind.door.allreduce(kind.tensor(np.full(1000, turn + RANK, np.float32)), op=kind.door.Sum, name="life")
        hvd.shutdown()
        # What was made in an earlier life is still there.
        np.testing.assert_array_equal(kind.host(out), np.full(1000, sum(turn + rank for rank in range(SIZE))))
        hvd.init()


def test_results_outlive_their_operation(kind):
    """Nobody else writes to memory that came from the engine while somebody holds it."""
    held = []
    for turn in range(20):
        rows = kind.tensor(np.full((RANK + 1, 100), 10 * turn + RANK, np.float32))
        held.append((turn, kind.door.allgather(rows, name="held")))
        if len(held) > 5:
            check_gathered(kind, *held.pop(0))
    for turn, gathered in held:
        check_gathered(kind, turn, gathered)


def check_gathered(kind, turn, gathered):
    wanted = np.concatenate([np.full((rank + 1, 100), 10 * turn + rank, np.float32) for rank in range(SIZE)])
    np.testing.assert_array_equal(kind.host(gathered), wanted)


def test_the_example_of_device_array(kind, monkeypatch):
    """It is written for Numba, for which `DriverArray` stands here."""
    if kind.name != "plain" or SIZE != 2:
        pytest.skip("the example is for arrays that are neither torch's nor CuPy's, and for two ranks")

    def as_cuda_array(array):
        return SimpleNamespace(copy_to_host=lambda: driver_arrays.read(array))

    cuda = SimpleNamespace(to_device=kind.tensor, as_cuda_array=as_cuda_array)
    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(cuda=cuda))
    function_of(name_examples.examples("hvdlite")["DeviceArray"])()
