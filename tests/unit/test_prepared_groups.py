"""Groups that are prepared once and submitted often: what they give, what they refuse, and when they end."""

import numpy as np
import pytest
from support.requests import F32, address, allreduce
from support.thread_ranks import BROADCAST, engines, outcomes_of, run_ranks, run_request

from hvdlite.errors import ErrorCode, HvdliteError, InvalidArgumentError, MismatchError, NotInitializedError


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_prepared_group_is_reduced_in_place_again_and_again(size):
    def body(rank):
        shapes = [(), (3,), (2, 5), (0,), (1000,)]
        arrays = [np.zeros(shape, np.float64) for shape in shapes]
        requests = [
            allreduce(f"p{index}", array, group="g", group_size=len(shapes), group_index=index)
            for index, array in enumerate(arrays)
        ]
        group = rank.engine.prepare(requests)
        for step in range(4):
            # Other memory each time: what was given to prepare does not count.
            arrays = [np.full(shape, (rank.rank + 1) * (index + step), np.float64) for index, shape in enumerate(shapes)]
            handle = rank.engine.submit_prepared(group, [address(array) for array in arrays], (), False)
            assert outcomes_of(rank.engine, [handle]) == [size] * len(shapes)
            for index, array in enumerate(arrays):
                assert (array == size * (size + 1) / 2 * (index + step)).all()
        assert rank.engine.counters()["submitted"] == 4 * len(shapes)
        rank.engine.release_prepared(group)

    run_ranks(size, body)


def test_members_of_a_prepared_group_may_be_absent():
    def body(rank):
        arrays = [np.full(4, 10.0 * rank.rank + index) for index in range(3)]
        group = rank.engine.prepare([allreduce(f"a{index}", array) for index, array in enumerate(arrays)])
        absent = [[0, 2], [1, 2], [2]][rank.rank]
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays], absent)
        assert outcomes_of(rank.engine, [handle]) == [2, 2, 0]
        assert (arrays[0] == 10 + 20).all()
        assert (arrays[1] == 1 + 21).all()
        assert (arrays[2] == 10 * rank.rank + 2).all()  # nobody had a value: nothing is written
        # The same names with a value on all ranks.
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays])
        assert outcomes_of(rank.engine, [handle]) == [3, 3, 3]
        assert (arrays[2] == 30 + 6).all()

    run_ranks(3, body)


def test_a_prepared_group_meets_plain_requests():
    """The ranks need not submit alike: what is asked is the same."""

    def body(rank):
        arrays = [np.full(2, rank.rank + index, np.float32) for index in range(2)]
        requests = [
            allreduce(f"m{index}", array, group="g", group_size=2, group_index=index) for index, array in enumerate(arrays)
        ]
        if rank.rank:
            handles = rank.engine.submit(requests)
        else:
            handles = [rank.engine.submit_prepared(rank.engine.prepare(requests), [address(array) for array in arrays])]
        assert outcomes_of(rank.engine, handles) == [2, 2]
        assert [array[0] for array in arrays] == [1, 3]

    run_ranks(2, body)


BAD_GROUPS = {
    "empty": ([], InvalidArgumentError, "at least one request"),
    "twice": ([("a", {}), ("b", {}), ("a", {})], InvalidArgumentError, "'a' .*occurs twice in this prepared group"),
    "root": ([("a", {"group": "g", "group_size": 2, "group_index": 2})], InvalidArgumentError, "group member 2 of 2"),
    "set": ([("a", {"process_set": 5})], InvalidArgumentError, "'a' in process set 5: Process set provided does not exist"),
    "device": ([("a", {"device": 4000})], HvdliteError, "'a' .*: (the CUDA driver|there is no GPU 4000)"),
}


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_a_group_that_cannot_be_is_refused_when_it_is_prepared(case):
    members, error, text = BAD_GROUPS[case]
    array = np.ones(2, np.float32)
    with engines(1) as ranks:
        with pytest.raises(error, match=text):
            ranks[0].engine.prepare([allreduce(name, array, **options) for name, options in members])
        assert ranks[0].engine.counters()["submitted"] == 0


def test_only_allreduces_of_one_set_are_prepared():
    def body(rank):
        array = np.ones(2, np.float32)
        number = rank.add_process_set([0, 1])
        with pytest.raises(InvalidArgumentError, match="broadcast of 'b' in process set 0: only allreduces can be prepared"):
            rank.engine.prepare([(BROADCAST, "b", F32, (2,), 0, 0)])
        if rank.rank < 2:
            mixed = [allreduce("a", array), allreduce("b", array, process_set=number)]
            with pytest.raises(InvalidArgumentError, match=r"'b' .*the first of this prepared group is in process set 0"):
                rank.engine.prepare(mixed)

    run_ranks(3, body)


def test_a_prepared_group_submitted_wrongly_leaves_nothing_behind():
    with engines(1) as ranks:
        engine = ranks[0].engine
        arrays = [np.ones(2, np.float32) for _ in range(3)]
        places = [address(array) for array in arrays]
        group = engine.prepare([allreduce(f"w{index}", array) for index, array in enumerate(arrays)])
        with pytest.raises(InvalidArgumentError, match=f"prepared group {group} has 3 requests, but 2 addresses were given"):
            engine.submit_prepared(group, places[:2])
        with pytest.raises(InvalidArgumentError, match="'w1' in process set 0: no input memory was given"):
            engine.submit_prepared(group, [places[0], 0, places[2]])
        with pytest.raises(InvalidArgumentError, match="'w1' in process set 0: no output memory was given"):
            engine.submit_prepared(group, [places[0], 0, places[2]], [1])
        with pytest.raises(IndexError, match="no request of that number"):
            engine.submit_prepared(group, places, [3])
        with pytest.raises(InvalidArgumentError, match=r"prepared group 999999 is unknown: .* or never existed"):
            engine.submit_prepared(999999, places)
        handle = engine.submit_prepared(group, places)
        assert outcomes_of(engine, [handle]) == [1, 1, 1]
        engine.release_prepared(group)
        with pytest.raises(InvalidArgumentError, match="is unknown: it was released, or prepared before the last shutdown"):
            engine.submit_prepared(group, places)
        engine.release_prepared(group)  # harmless
        assert engine.counters()["submitted"] == 3


def test_a_prepared_group_in_flight_cannot_be_submitted_again():
    def body(rank):
        arrays = [np.ones(2, np.float32) for _ in range(3)]
        places = [address(array) for array in arrays]
        group = rank.engine.prepare([allreduce(f"f{index}", array) for index, array in enumerate(arrays)])
        if rank.rank:  # waits until the other has tried
            run_request(rank.engine, allreduce("go.0", arrays[0][:0]))
        handle = rank.engine.submit_prepared(group, places)
        if not rank.rank:
            with pytest.raises(InvalidArgumentError, match=r"'f0' .*still in flight"):
                rank.engine.submit_prepared(group, places)
            run_request(rank.engine, allreduce("go.0", arrays[0][:0]))
        assert outcomes_of(rank.engine, [handle]) == [2, 2, 2]

    run_ranks(2, body)


def test_a_removed_set_ends_its_prepared_groups_also_if_its_id_is_used_again():
    def body(rank):
        array = np.ones(2, np.float32)
        number = rank.add_process_set([0, 1])
        group = rank.engine.prepare([allreduce("r", array, process_set=number)]) if rank.rank < 2 else 0
        if group:
            outcomes_of(rank.engine, [rank.engine.submit_prepared(group, [address(array)])])
        rank.remove_process_set(number)
        text = "'r' in process set .*the process set of this prepared group was removed"
        if group:
            with pytest.raises(InvalidArgumentError, match=text):
                rank.engine.submit_prepared(group, [address(array)])
        assert rank.add_process_set([0, 1]) == number
        if group:
            with pytest.raises(InvalidArgumentError, match=text):
                rank.engine.submit_prepared(group, [address(array)])

    run_ranks(3, body)


def test_a_group_of_an_earlier_engine_is_unknown_to_the_next():
    array = np.ones(2, np.float32)
    with engines(1) as ranks:
        old = ranks[0].engine.prepare([allreduce("o", array)])
    with pytest.raises(NotInitializedError):
        ranks[0].engine.submit_prepared(old, [address(array)])
    with engines(1) as ranks:
        ranks[0].engine.prepare([allreduce("o", array)])
        with pytest.raises(InvalidArgumentError, match="prepared before the last shutdown"):
            ranks[0].engine.submit_prepared(old, [address(array)])


def test_a_mismatch_of_prepared_groups_is_an_error_of_the_members_concerned():
    def body(rank):
        arrays = [np.ones(2 + (index == 1) * rank.rank, np.float32) for index in range(3)]
        group = rank.engine.prepare([allreduce(f"x{index}", array) for index, array in enumerate(arrays)])
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays])
        first, error, third = outcomes_of(rank.engine, [handle])
        assert first == third == 2
        assert isinstance(error, MismatchError)
        assert "shape differs: [2] on rank 0, [3] on rank 1" in str(error)
        assert [array[0] for array in arrays] == [2, 1, 2]
        return str(error)

    assert len(set(run_ranks(2, body))) == 1


def test_a_group_that_never_completes_is_found_and_ends():
    def body(rank):
        arrays = [np.ones(2, np.float32) for _ in range(3)]
        names = ["d0", f"d1.{rank.rank}", "d2"]
        group = rank.engine.prepare([allreduce(name, array) for name, array in zip(names, arrays, strict=True)])
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays])
        first, error, third = outcomes_of(rank.engine, [handle])
        assert first == third == 2
        assert error.code == ErrorCode.TIMEOUT

    run_ranks(2, body, {"deadlock_timeout": 0.2})
