"""What ranks disagree about fails on all of them, with one text that names tensor and ranks; nothing else breaks."""

import numpy as np
import pytest
from support.rest import outlasts
from support.world import REPEATS, WORLD, on_all_ranks

from hvdlite.runtime import RUNTIME

RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
RANKS = (2, 3)
MORE_RANKS = (4,)
OTHERS = "rank 0" if SIZE == 2 else "ranks 0, 1" if SIZE == 3 else f"ranks 0-{LAST - 1}"
ODD = RANK == LAST  # the rank that asks for something else

# name: (call, what the text says). Rank LAST differs from all others.
DIFFERENCES = {
    "dtype": (
        lambda hvd: hvd.allreduce(np.ones(4, "float64" if ODD else "float32"), name="t"),
        f"allreduce of 't' in process set 0: dtype differs: float32 on {OTHERS}, float64 on rank {LAST}",
    ),
    "shape": (
        lambda hvd: hvd.allreduce(np.ones((4, 2 + ODD)), name="t"),
        f"allreduce of 't' in process set 0: shape differs: [4, 2] on {OTHERS}, [4, 3] on rank {LAST}",
    ),
    "dimensions": (
        lambda hvd: hvd.allreduce(np.ones((4, 1) if ODD else 4), name="t"),
        f"shape differs: [4] on {OTHERS}, [4, 1] on rank {LAST}",
    ),
    "op": (
        lambda hvd: hvd.allreduce(np.ones(4), op=hvd.Min if ODD else hvd.Sum, name="t"),
        f"allreduce of 't' in process set 0: reduce op differs: Sum on {OTHERS}, Min on rank {LAST}",
    ),
    "prescale": (
        lambda hvd: hvd.allreduce(np.ones(4), prescale_factor=1.0 + ODD, name="t"),
        f"scaling differs: prescale 1, postscale 1 on {OTHERS}, prescale 2, postscale 1 on rank {LAST}",
    ),
    "postscale": (
        lambda hvd: hvd.allreduce(np.ones(4), postscale_factor=0.5 if ODD else 1.0, name="t"),
        f"scaling differs: prescale 1, postscale 1 on {OTHERS}, prescale 1, postscale 0.5 on rank {LAST}",
    ),
    "in place": (
        lambda hvd: hvd.allreduce_(np.ones(4 + ODD), name="t"),
        f"shape differs: [4] on {OTHERS}, [5] on rank {LAST}",
    ),
    "root": (
        lambda hvd: hvd.broadcast(np.ones(4), 1 if ODD else 0, name="t"),
        f"broadcast of 't' in process set 0: root rank differs: root 0 on {OTHERS}, root 1 on rank {LAST}",
    ),
    "broadcast shape": (
        lambda hvd: hvd.broadcast(np.ones(4 + ODD), 0, name="t"),
        f"broadcast of 't' in process set 0: shape differs: [4] on {OTHERS}, [5] on rank {LAST}",
    ),
    "allgather dtype": (
        lambda hvd: hvd.allgather(np.ones((RANK, 2), "int8" if ODD else "uint8"), name="t"),
        f"allgather of 't' in process set 0: dtype differs: uint8 on {OTHERS}, int8 on rank {LAST}",
    ),
    "allgather shape": (
        lambda hvd: hvd.allgather(np.ones((RANK, 3 if ODD else 2)), name="t"),
        f"allgather of 't' in process set 0: shape differs: [*, 2] on {OTHERS}, [*, 3] on rank {LAST}",
    ),
    "alltoall shape": (
        lambda hvd: hvd.alltoall(np.ones((SIZE, 3 if ODD else 2)), name="t"),
        f"alltoall of 't' in process set 0: shape differs: [*, 2] on {OTHERS}, [*, 3] on rank {LAST}",
    ),
    "reducescatter shape": (
        lambda hvd: hvd.reducescatter(np.ones(4 + ODD), name="t"),
        f"reducescatter of 't' in process set 0: shape differs: [4] on {OTHERS}, [5] on rank {LAST}",
    ),
    "reducescatter op": (
        lambda hvd: hvd.reducescatter(np.ones(4), op=hvd.Sum if ODD else hvd.Average, name="t"),
        f"reduce op differs: Average on {OTHERS}, Sum on rank {LAST}",
    ),
    "group member": (
        lambda hvd: hvd.grouped_allreduce([np.ones(2), np.ones(3 + ODD), np.ones(1)], name="t"),
        f"allreduce of 't_2of3' in process set 0: shape differs: [3] on {OTHERS}, [4] on rank {LAST}",
    ),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_difference(hvd, case):
    call, said = DIFFERENCES[case]
    for _ in REPEATS:
        with pytest.raises(hvd.MismatchError) as error:
            call(hvd)
        assert said in str(error.value)
        assert "; " in str(error.value), "says what to do"
        assert isinstance(error.value, hvd.HorovodInternalError)
        on_all_ranks(str(error.value))
        # The engine is as usable as before, and so is the name.
        assert hvd.allreduce(np.ones(4), op=hvd.Sum, name="t").tolist() == [SIZE] * 4


def test_a_name_that_worked_before_can_fail_and_work_again(hvd):
    for repeat in REPEATS:
        assert hvd.allreduce(np.ones(3), name="u", op=hvd.Sum).tolist() == [SIZE] * 3
        with pytest.raises(hvd.MismatchError, match="allreduce of 'u'"):
            hvd.allreduce(np.ones(3 + ODD), name="u", op=hvd.Sum)
        assert hvd.allreduce(np.ones(4 + repeat), name="u", op=hvd.Sum).tolist() == [SIZE] * (4 + repeat)


def test_a_difference_in_a_process_set_names_ranks_of_the_job(ended):
    if SIZE == 2:
        pytest.skip("takes two ranks in a set and one outside")
    subset = ended.ProcessSet(list(range(1, SIZE)))
    ended.init(process_sets=[subset])
    if RANK in subset.ranks:
        with pytest.raises(ended.MismatchError) as error:
            ended.allreduce(np.ones(2 + ODD), name="s", process_set=subset)
        others = "rank 1" if SIZE == 3 else "ranks 1, 2"
        assert f"shape differs: [2] on {others}, [3] on rank {LAST}" in str(error.value)


def test_others_in_flight_are_not_disturbed(hvd):
    good = [hvd.allreduce_async(np.full(100, float(i)), name=f"good{i}", op=hvd.Sum) for i in range(10)]
    bad = hvd.allreduce_async(np.ones(2 + ODD), name="bad")
    good += [hvd.allreduce_async(np.full(100, float(i)), name=f"good{i}", op=hvd.Sum) for i in range(10, 20)]
    for i, handle in enumerate(good):
        assert handle.synchronize().tolist() == [i * SIZE] * 100
    for _ in range(2):  # a failed handle says so again
        with pytest.raises(hvd.MismatchError, match="allreduce of 'bad'"):
            bad.synchronize()


def fails_by_deadlock_detection(hvd, call, *said):
    """The call fails on this rank, and says what was waited for."""
    WORLD.Barrier()
    with pytest.raises(hvd.OperationTimeoutError) as error:
        call()
    for fragment in said:
        assert fragment in str(error.value)
    on_all_ranks(str(error.value))
    assert hvd.allreduce(np.ones(3), op=hvd.Sum, name="afterwards").tolist() == [SIZE] * 3


def test_a_misspelt_name(hvd):
    name = "wieght" if ODD else "weight"
    fails_by_deadlock_detection(
        hvd, lambda: hvd.allreduce(np.ones(3), name=name), "'weight'", "'wieght'", OTHERS, f"rank {LAST}"
    )


def test_a_missing_tensor(hvd):
    """The last rank skips one tensor and waits for the next."""

    def call():
        handles = [hvd.allreduce_async(np.ones(2), name=name) for name in ("one", "two") if not (ODD and name == "one")]
        handles[0].synchronize()
        if ODD:  # "two" is not missing; what the others wait for is
            hvd.allreduce(np.ones(2), name="three")

    fails_by_deadlock_detection(hvd, call, "'one'")


def test_allreduce_against_allgather_under_one_name(hvd):
    def call():
        return hvd.allgather(np.ones(2), name="both") if ODD else hvd.allreduce(np.ones(2), name="both")

    fails_by_deadlock_detection(hvd, call, "allreduce of 'both'", "allgather of 'both'")


def test_a_rank_that_waits_elsewhere(hvd):
    def call():
        return hvd.barrier() if ODD else hvd.broadcast(np.ones(2), 0, name="lonely")

    fails_by_deadlock_detection(hvd, call, "'lonely'", "barrier")


def test_a_slow_rank_is_no_deadlock(hvd):
    """Detection fires only if everyone waits: a rank that computes is waited for."""
    for late in (0, LAST):
        if late == RANK:
            assert outlasts(RUNTIME.engine, 2.5)
        assert hvd.allreduce(np.ones(3), op=hvd.Sum, name="slow").tolist() == [SIZE] * 3
