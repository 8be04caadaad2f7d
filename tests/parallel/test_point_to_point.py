"""Send and receive: dtypes, sizes on both sides of what travels whole, any order, any rank, any tag, objects, errors."""

import numpy as np
import pytest
from support.cases import SHAPES
from support.world import REPEATS, WORLD, distinct

from hvdlite.dtypes import DType

RANK, SIZE = WORLD.rank, WORLD.size
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
LARGE = (70_001,)


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.label)
@pytest.mark.parametrize("shape", [(5, 3), LARGE], ids=str)
def test_every_dtype_around_a_ring(hvd, dtype, shape):
    mine, got = distinct(RANK, shape, dtype), np.zeros_like(distinct(RANK, shape, dtype))
    handle = hvd.irecv(got, LEFT)
    assert hvd.send(mine, RIGHT) is None
    assert handle.synchronize() is got
    np.testing.assert_array_equal(got, distinct(LEFT, shape, dtype))
    np.testing.assert_array_equal(mine, distinct(RANK, shape, dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_to_everybody_and_oneself(hvd, shape):
    for repeat in REPEATS:
        sends = [hvd.isend(distinct(RANK, shape, salt=repeat + to), to) for to in range(SIZE)]
        for source in reversed(range(SIZE)):
            got = np.empty_like(distinct(source, shape))
            hvd.recv(got, source)
            np.testing.assert_array_equal(got, distinct(source, shape, salt=repeat + RANK))
        for handle in sends:
            handle.synchronize()


def test_views_and_shapes_that_differ(hvd):
    mine = distinct(RANK, (40, 300)).T
    got = np.zeros((40, 300), mine.dtype)[:, ::-1]
    hvd.batch([hvd.P2POp(hvd.irecv, got, LEFT), hvd.P2POp(hvd.isend, mine, RIGHT)]).synchronize()
    np.testing.assert_array_equal(got.reshape(-1), distinct(LEFT, (40, 300)).T.reshape(-1))


def test_a_dtype_that_is_only_moved(hvd):
    days = np.array(["2020-01-01", "1970-01-01"], "datetime64[D]") + RANK
    got = np.zeros_like(days)
    hvd.batch([hvd.P2POp(hvd.isend, days, RIGHT), hvd.P2POp(hvd.irecv, got, LEFT)]).synchronize()
    np.testing.assert_array_equal(got, days - RANK + LEFT)


def test_tags_and_order(hvd):
    sends = []
    for number in range(6):
        tensor = distinct(RANK, LARGE if number % 3 == 0 else (number,), salt=number)
        sends.append(hvd.isend(tensor, RIGHT, tag=number % 2, name=f"m{number}"))
    for number in (1, 3, 0, 5, 2, 4):
        got = np.empty_like(distinct(LEFT, LARGE if number % 3 == 0 else (number,)))
        hvd.recv(got, LEFT, tag=number % 2)
        np.testing.assert_array_equal(got, distinct(LEFT, got.shape, salt=number))
    for handle in sends:
        handle.synchronize()


@pytest.mark.parametrize("elements", [3, 5000])
def test_from_any_rank_with_any_tag(hvd, elements):
    if RANK == 0:
        seen = []
        for _ in range(SIZE - 1):
            got = np.empty(elements)
            tensor, source, tag = hvd.recv(got, tag=None)
            assert tensor is got
            np.testing.assert_array_equal(got, distinct(source, (elements,), "float64"))
            assert tag == 10 + source
            seen.append(source)
        assert sorted(seen) == list(range(1, SIZE))
    else:
        hvd.send(distinct(RANK, (elements,), "float64"), 0, tag=10 + RANK)
    hvd.barrier()


def test_a_receive_waits_for_no_collective(hvd):
    got = np.empty(5000)
    handle = hvd.irecv(got, LEFT)
    np.testing.assert_array_equal(hvd.allreduce(np.full(3, RANK), op=hvd.Sum), np.full(3, sum(range(SIZE))))
    assert not handle.poll()
    hvd.barrier()  # nobody has sent before
    pending = hvd.allreduce_async(np.ones(2), name="late") if RANK else None
    hvd.send(distinct(RANK, (5000,), "float64"), RIGHT)
    handle.synchronize()
    np.testing.assert_array_equal(got, distinct(LEFT, (5000,), "float64"))
    (pending or hvd.allreduce_async(np.ones(2), name="late")).synchronize()


def test_a_process_set_has_messages_of_its_own(hvd):
    ranks = hvd.add_process_set(sorted({0, SIZE - 1}))
    if RANK == 0:
        hvd.send(np.full(2, 1.0), SIZE - 1)
        hvd.send(np.full(2, 2.0), SIZE - 1, process_set=ranks)
    if RANK == SIZE - 1:
        got = np.empty(2)
        assert hvd.recv(got, process_set=ranks).source == 0
        np.testing.assert_array_equal(got, [2, 2])
        np.testing.assert_array_equal(hvd.recv(got, 0), [1, 1])
    hvd.remove_process_set(ranks)


def test_objects(hvd):
    if RANK == 0:
        for to in range(1, SIZE):
            hvd.send_object({"to": to, "much": list(range(5000))}, to)
            hvd.send_object([None] * to, to, tag=3)
            with pytest.raises(hvd.InvalidArgumentError, match="could not pickle its generator"):
                hvd.send_object((number for number in range(3)), to)
    else:
        tensor, source, tag = hvd.recv_object()
        assert (tensor, source, tag) == ({"to": RANK, "much": list(range(5000))}, 0, 0)
        assert hvd.recv_object(0, tag=3) == [None] * RANK
        with pytest.raises(hvd.InvalidArgumentError, match="recv_object: rank 0 could not pickle its generator"):
            hvd.recv_object(0)


def test_lists_of_objects(hvd):
    sent = [{"rank": RANK}, "text", list(range(5000))]
    if RANK == SIZE - 1:
        for source in range(SIZE - 1):
            got = mine = [None] * 3
            assert hvd.recv_object_list(got, source or None, tag=source) == source
            assert got is mine
            assert got == [{"rank": source}, *sent[1:]]
            with pytest.raises(hvd.InvalidArgumentError, match=f"rank {source} sent 3 objects, but this rank's list has 2"):
                hvd.recv_object_list(short := [1, 2], source)
            assert short == [1, 2]
            with pytest.raises(hvd.InvalidArgumentError, match=f"rank {source} sent no list but a int"):
                hvd.recv_object_list([None], source)
    else:
        hvd.send_object_list(tuple(sent), SIZE - 1, tag=RANK)
        hvd.send_object_list(sent, SIZE - 1)
        hvd.send_object(7, SIZE - 1)


@pytest.mark.skipif(SIZE == 1, reason="two ranks send and receive")
@pytest.mark.parametrize("elements", [4, 5000])
def test_a_mismatch_is_an_error_on_both_ranks(hvd, elements):
    text = (
        rf"recv of 'in' from rank 0 \(tag 0\) in process set 0: "
        rf"rank 0 sent 'out', {elements} elements of float64, but rank 1 receives"
    )
    if RANK == 0:

        def fail():
            hvd.send(np.ones(elements), 1, name="out")
            if (
                elements == 4
            ):  # it has gone on: who receives after the other has seen it is told, at the latest when it sends again
                hvd.recv(np.empty(0), 1, tag=1)
                hvd.send(np.ones(elements), 1, name="out")

        with pytest.raises(hvd.MismatchError, match=text):
            fail()
    if RANK == 1:
        with pytest.raises(hvd.MismatchError, match=text + f" {elements} elements of float32"):
            hvd.recv(np.empty(elements, np.float32), 0, name="in")
        if elements == 4:
            hvd.send(np.empty(0), 0, tag=1)
    hvd.barrier()


def test_two_large_sends_towards_each_other_are_named(hvd):
    with pytest.raises(hvd.OperationTimeoutError) as caught:
        hvd.send(np.ones(5000), RIGHT, name="forth")
    for rank in range(SIZE):
        assert f"rank {rank} waits for send of 'forth' to rank {(rank + 1) % SIZE} (tag 0)" in str(caught.value)
    hvd.barrier()


def test_wrong_arguments(hvd):
    x = np.ones(3)
    for call, text in (
        (lambda: hvd.send(x, SIZE), rf"the process set has no rank {SIZE} \(it has ranks? 0"),
        (lambda: hvd.send(x, None), "rank None is no number"),
        (lambda: hvd.recv(x, -1), "rank -1 is no number from 0 on, nor None for any"),
        (lambda: hvd.send(x, 0, tag=-1), "tag -1 is no number"),
        (lambda: hvd.send(x, 0, tag=None), "tag None"),
        (lambda: hvd.recv([1.0], 0), "needs a NumPy array"),
        (lambda: hvd.batch([hvd.P2POp(hvd.send, x, 0)]), "neither isend nor irecv"),
    ):
        with pytest.raises(hvd.InvalidArgumentError, match=text):
            call()
    hvd.barrier()


def test_it_is_counted(hvd):
    before = hvd.stats()
    hvd.batch([hvd.P2POp(hvd.isend, np.ones(2000), RIGHT), hvd.P2POp(hvd.irecv, np.empty(2000), LEFT)]).synchronize()
    spent = hvd.stats() - before
    assert spent.operations == 2
    assert (spent.bytes, spent.bus_bytes) == (32000, 16000)
