"""`check_consistency` of arrays: bit by bit, on all ranks with one text that names ranks, value and element; nothing hangs."""

import numpy as np
import pytest
from support.world import WORLD

from hvdlite.errors import InvalidArgumentError, MismatchError

RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
RANKS = (2, 3)
ODD = RANK == LAST  # the rank that has something else
OTHERS = "rank 0" if SIZE == 2 else "ranks 0, 1"


def refused(function, kind=MismatchError):
    """The text of the error that the function raises, the same on all ranks."""
    with pytest.raises(kind) as raised:
        function()
    text = str(raised.value)
    assert len(set(WORLD.allgather(text))) == 1
    return text


def values():
    return {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "steps": 7, "inner": [np.array([np.nan, np.inf]), None, (1.5,)]}


def test_equal_values_whatever_they_are(hvd):
    for dtype in ("bool", "int8", "uint64", "float16", "complex64", "datetime64[s]", "U5"):
        hvd.check_consistency(np.arange(6).astype(dtype), np.zeros((0, 3), dtype), np.arange(6).astype(dtype).reshape(2, 3).T)
    assert hvd.check_consistency(values(), 3.0, None) is None
    hvd.check_consistency({"M\udcfcller": 1})


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "int4"])
def test_dtypes_of_few_bits(hvd, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.ones(3, getattr(ml_dtypes, name))
    hvd.check_consistency(array)
    array[1] += ODD
    assert f"{name} [3]: its first element that differs, [1], is 1 on {OTHERS}, but 2" in refused(
        lambda: hvd.check_consistency(array)
    )


def test_the_error_names_ranks_counts_value_and_element(hvd):
    mine = values()
    if ODD:
        mine["w"][1, 2] += 0.5
        mine["steps"] = 8
    text = refused(lambda: hvd.check_consistency(mine))
    assert f"check_consistency in process set 0: rank {LAST} differs in 2 of 4 values from {OTHERS}. " in text
    assert "The first is 'steps of argument 1 (dict)', int64 []: it is " in text
    mine["steps"] = 7
    text = refused(lambda: hvd.check_consistency(0, mine))
    assert "in 1 of 5 values" in text
    assert (
        f"'w of argument 2 (dict)', float32 [3, 4]: its first element that differs, [1, 2], is 6 on {OTHERS}, but 6.5 on"
        in text
    )
    assert "hvd.broadcast(array, root_rank=0)" in text


def test_every_rank_may_differ(hvd):
    text = refused(lambda: hvd.check_consistency([RANK, RANK % 2]))
    counts = {2: "rank 1 differs in 2", 3: "rank 1 differs in 2, and rank 2 differs in 1"}
    assert f"{counts[SIZE]} of 2 values from rank 0. " in text
    assert all(f"{rank} on rank {rank}" in text for rank in range(SIZE))


def test_the_rank_that_differs_from_most_is_named(hvd):
    named = "rank 1 differs in 1 of 1 values from rank 0" if SIZE == 2 else "rank 0 differs in 1 of 1 values from ranks 1, 2"
    assert named in refused(lambda: hvd.check_consistency(np.array([RANK == 0])))


@pytest.mark.parametrize("place", [0, 1023, 1024, 2_000_003])
def test_the_element_is_found_in_large_arrays(hvd, place):
    array = np.zeros(2_000_004, np.uint8)
    array[place] = 9 * ODD
    array[-1] = 7 * ODD
    shown = 7 * (place == array.size - 1) or 9
    assert f"differs, [{place}], is 0 on {OTHERS}, but {shown} on rank {LAST}" in refused(lambda: hvd.check_consistency(array))


@pytest.mark.parametrize(
    ("usual", "other", "shown"),
    [
        (np.array([0.0]), np.array([-0.0]), "is 0 on {0}, but -0 on"),
        (np.array([1 << 53]), np.array([(1 << 53) + 1]), "(bits 0x0020000000000000) on {0}, but 9.00719925e+15 (bits 0x0020"),
        (np.array([1, 2j]), np.array([1, 2.5j]), "[1], is 0+2j on {0}, but 0+2.5j on"),
        (np.array([0x7FF8 << 48], np.uint64).view(float), np.array([0x7FF9 << 48], np.uint64).view(float), "nan (bits 0x7ff9"),
        (np.array(["ab"]), np.array(["ac"]), "is (bits 0x0000006200000061) on {0}, but (bits 0x0000006300000061)"),
    ],
)
def test_bits_count_and_not_numbers(hvd, usual, other, shown):
    assert shown.format(OTHERS) in refused(lambda: hvd.check_consistency(other if ODD else usual))


def test_other_names_shapes_and_dtypes_are_named(hvd):
    lacking = dict.fromkeys("abcdef"[: 1 if ODD else 6], 1)
    text = refused(lambda: hvd.check_consistency(lacking))
    assert f"'b of argument 1 (dict)' is on {OTHERS}, but not on rank {LAST}; 'c of" in text
    assert "and 2 more; pass the same objects on all ranks" in text
    text = refused(lambda: hvd.check_consistency(np.zeros((2, 3 + ODD), np.float32)))
    assert f"argument 1 (ndarray) is float32 [2, 3] on {OTHERS}, but argument 1 (ndarray) is float32 [2, 4] on" in text
    assert "is float64 [1] on" in refused(lambda: hvd.check_consistency(np.zeros(1, "float64" if ODD else "float32")))
    assert "'1 of argument 1 (list)' is on" in refused(lambda: hvd.check_consistency([1] * (1 + ODD)))


def test_what_one_rank_cannot_read_is_an_error_on_all(hvd):
    with pytest.raises(InvalidArgumentError, match=r"an object of type object at 'x' has no bytes to compare") as raised:
        hvd.check_consistency({"x": object() if ODD else 1})
    assert ODD or f"rank {LAST} cannot read its values: InvalidArgumentError: check_consistency: an object" in str(raised.value)
    hvd.check_consistency(values())  # and the next one works


def test_arguments(hvd):
    assert "nothing to compare" in refused(hvd.check_consistency, InvalidArgumentError)
    for every in (0, -1, 1.5, True):
        assert f"every={every!r}" in refused(lambda every=every: hvd.check_consistency(1, every=every), InvalidArgumentError)
    assert f"every is 4 on {OTHERS}, but every is 5 on" in refused(lambda: hvd.check_consistency(1, every=4 + ODD))
    with pytest.raises((MismatchError, InvalidArgumentError), match="an object of type object has no bytes"):
        hvd.check_consistency(object() if ODD else 1, every=4)
    with pytest.raises(InvalidArgumentError, match="is no ProcessSet"):
        hvd.check_consistency(1, process_set=[0])


def test_a_checker_compares_after_each_so_many_steps(hvd):
    array = np.zeros(3)
    checker = hvd.check_consistency({"a": array}, every=3)
    for _ in range(4):
        checker.step()
    array[1] = ODD  # between steps 4 and 5
    checker.step()
    text = refused(checker.step)
    assert f"in process set 0, after step 6 (all ranks were equal after step 3): rank {LAST} differs" in text
    assert checker.steps == 6
    array[1] = 0
    for _ in range(3):
        checker.step()
    array[1] = RANK
    checker.close()
    for _ in range(3):
        checker.step()


def test_a_checker_outlives_a_job_of_one_rank(ended):
    ended.init(comm=[RANK])
    checker = ended.check_consistency(np.array([RANK]), every=1)
    checker.step()
    ended.shutdown()
    ended.init()
    assert "0 on rank 0, but 1 on rank 1" in refused(checker.step)


def test_steps_may_have_values_of_their_own(hvd):
    checker = hvd.check_consistency(every=2)
    checker.step()
    with pytest.raises(InvalidArgumentError, match=r"pass objects to check_consistency\(\) or to step\(\)"):
        checker.step()
    checker.step([1.0])
    assert "after step 4:" in refused(lambda: checker.step([1.0 + ODD]))


def test_other_steps_are_named(hvd):
    checker = hvd.check_consistency(1, every=1)
    checker.steps = 5 * ODD
    assert f"this step is 1 on {OTHERS}, but this step is 6 on rank {LAST}; make" in refused(checker.step)


def test_only_ranks_of_the_process_set_take_part(hvd):
    members = hvd.add_process_set([0, 1])
    mine = np.array([1.0 if RANK < 2 else 5.0])
    checker = hvd.check_consistency(mine, every=1, process_set=members)
    checker.step()
    if RANK == 1:
        mine[0] = 2.0
    if members.included():
        with pytest.raises(
            MismatchError, match=rf"in process set {members.process_set_id}, after step 2 .* 1 on rank 0, but 2 on"
        ):
            checker.step()
    else:
        checker.step()
    hvd.remove_process_set(members)


def test_ranks_that_have_joined_are_left_out(hvd):
    if ODD:
        hvd.join()
        return
    if SIZE == 2:
        hvd.check_consistency(np.array([RANK]))
    else:
        with pytest.raises(MismatchError, match="0 on rank 0, but 1 on rank 1"):
            hvd.check_consistency(np.array([RANK]))
    hvd.join()
