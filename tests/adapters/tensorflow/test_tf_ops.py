"""The ops of the library: values, numbers, process sets, join, and errors."""

import numpy as np
import pytest
from support.cases import REDUCTIONS, SHAPES, Op, Reduction, random_sizes
from support.world import REPEATS, WORLD, check, distinct, inputs, on_all_ranks, shuffled

tf = pytest.importorskip("tensorflow")

from tensors import modes, to_array, to_tensor  # noqa: E402

from hvdlite.dtypes import DType  # noqa: E402
from hvdlite.tensorflow import collective_ops as ops  # noqa: E402
from hvdlite.tensorflow import library  # noqa: E402

RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)

pytestmark = pytest.mark.usefixtures("hvd")


# --- values ----------------------------------------------------------------------------------------------------------------


@modes
def test_allreduce_of_every_dtype_and_op(mode):
    """In a graph all are in flight together, and each rank makes them in an order of its own."""

    @mode
    def reduce(tensors):
        return {
            key: ops.allreduce(tensors[key], name=f"all.{key}", op=int(REDUCTIONS[key].op))
            for key in (shuffled(range(len(REDUCTIONS))) if mode is tf.function else range(len(REDUCTIONS)))
        }

    for repeat in REPEATS:
        everyone = [inputs(reduction, (131,), repeat) for reduction in REDUCTIONS]
        outputs = reduce({key: to_tensor(arrays[RANK]) for key, arrays in enumerate(everyone)})
        for key, reduction in enumerate(REDUCTIONS):
            check(to_array(outputs[key]), everyone[key], reduction, str(reduction))


@modes
def test_allreduce_of_every_shape(mode):
    @mode
    def reduce(tensors):
        return [ops.allreduce(tensor, name=f"shape.{i}") for i, tensor in enumerate(tensors)]

    for repeat in REPEATS:
        everyone = [inputs(FLOAT_SUM, shape, repeat) for shape in SHAPES]
        outputs = reduce([to_tensor(arrays[RANK]) for arrays in everyone])
        for shape, arrays, output in zip(SHAPES, everyone, outputs, strict=True):
            check(to_array(output), arrays, FLOAT_SUM, f"shape {shape}")


@modes
def test_factors_are_doubles(mode):
    @mode
    def reduce(tensor):
        return ops.allreduce(tensor, name="scaled", prescale=0.1, postscale=1.0 / 3.0)

    everyone = [np.array([1.5 + rank], np.float64) for rank in range(SIZE)]
    found = reduce(tf.constant(everyone[RANK])).numpy()
    np.testing.assert_allclose(found, sum(array * 0.1 for array in everyone) / 3.0, rtol=1e-15)


@modes
def test_what_only_moves_keeps_its_bits(mode):
    """Allgather, broadcast and alltoall of every dtype, with as many rows as each rank likes."""

    @mode
    def move(tensors, splits):
        moved = {}
        for label in shuffled(tensors) if mode is tf.function else tensors:
            tensor = tensors[label]
            moved[label] = (
                ops.allgather(tensor, name=f"g.{label}"),
                ops.broadcast(tensor[:1], root_rank=LAST, name=f"b.{label}"),
                *ops.alltoall(tensor, splits, name=f"a.{label}"),
            )
        return moved

    for repeat in REPEATS:
        splits = [random_sizes(SIZE, 10 * repeat + rank + 1) for rank in range(SIZE)]
        arrays = {
            dtype.label: [distinct(rank, (1 + sum(splits[rank]), 2), dtype, repeat) for rank in range(SIZE)] for dtype in DType
        }
        kind = np.int32 if repeat else np.int64
        found = move({label: to_tensor(each[RANK]) for label, each in arrays.items()}, tf.constant(splits[RANK], kind))
        for label, each in arrays.items():
            gathered, sent, exchanged, received = map(to_array, found[label])
            np.testing.assert_array_equal(gathered, np.concatenate(each), label)
            np.testing.assert_array_equal(sent, each[LAST][:1], label)
            starts = [sum(splits[rank][:RANK]) for rank in range(SIZE)]
            parts = [each[rank][starts[rank] : starts[rank] + splits[rank][RANK]] for rank in range(SIZE)]
            np.testing.assert_array_equal(exchanged, np.concatenate(parts), label)
            assert received.tolist() == [counts[RANK] for counts in splits]
            assert received.dtype == np.int32


@modes
def test_even_alltoall_and_reducescatter(mode):
    @mode
    def run(tensor):
        average = ops.reducescatter(tensor, op=int(Op.AVERAGE), name="r")
        return (*ops.alltoall(tensor, name="e"), average)

    everyone = [distinct(rank, (2 * SIZE, 3)) for rank in range(SIZE)]
    mine = slice(2 * RANK, 2 * RANK + 2)
    for _ in REPEATS:
        output, received, average = run(tf.constant(everyone[RANK]))
        np.testing.assert_array_equal(output, np.concatenate([array[mine] for array in everyone]))
        assert received.numpy().tolist() == [2] * SIZE
        np.testing.assert_allclose(average, np.mean(everyone, axis=0)[mine], rtol=1e-6)


@modes
def test_groups_may_mix_dtypes_and_be_large(mode):
    @mode
    def run(tensors):
        reduced = ops.grouped_allreduce(tensors, name="group")
        gathered = ops.grouped_allgather(tensors, name="group")
        return reduced, gathered, ops.grouped_reducescatter(tensors[:2], name="group")

    labels = ("float32", "int64", "float16", "float64")
    shapes = ((300_001,), (SIZE, 2), (5,), (1, 1))  # the first one's results are the engine's own memory
    everyone = [[distinct(rank, *pair) for pair in zip(shapes, labels, strict=True)] for rank in range(SIZE)]
    for _ in REPEATS:
        reduced, gathered, scattered = run([tf.constant(array) for array in everyone[RANK]])
        for i in range(len(labels)):
            each = [arrays[i] for arrays in everyone]
            np.testing.assert_array_equal(reduced[i], sum(each))
            np.testing.assert_array_equal(gathered[i], np.concatenate(each))
        np.testing.assert_array_equal(scattered[1], sum(arrays[1] for arrays in everyone)[RANK : RANK + 1])


def test_kernels_do_not_wait_in_the_threads_of_tensorflow():
    assert library.is_asynchronous()


def test_unnamed_operations_pair_by_their_order():
    for repeat in REPEATS:
        tensor = tf.constant([RANK + 1.0, repeat])
        total = SIZE * (SIZE + 1) / 2
        assert ops.allreduce(tensor).numpy().tolist() == [total, SIZE * repeat]
        assert [part.numpy().tolist() for part in ops.grouped_allreduce([tensor, tensor * 2])] == [
            [total, SIZE * repeat],
            [2 * total, 2 * SIZE * repeat],
        ]
        assert ops.allgather(tensor[:1]).numpy().tolist() == [rank + 1 for rank in range(SIZE)]


# --- errors ----------------------------------------------------------------------------------------------------------------


@modes
def test_what_ranks_disagree_about_is_a_failed_precondition(mode):
    @mode
    def run(x):
        return ops.allreduce(x, name="mismatched")

    for _ in REPEATS:
        with pytest.raises(tf.errors.FailedPreconditionError) as error:
            run(tf.ones([2 + (RANK == LAST)]))
        assert "allreduce of 'mismatched' in process set 0: shape differs: [2] on rank" in error.value.message
        assert ops.allreduce(tf.ones([2]), name="mismatched").numpy().tolist() == [SIZE, SIZE]


def test_other_operations_of_the_step_end_well():
    @tf.function
    def run(x, odd):
        return [ops.allreduce(x, name=f"good{i}") for i in range(8)] + [ops.allreduce(odd, name="bad")]

    for _ in REPEATS:
        with pytest.raises(tf.errors.FailedPreconditionError, match="allreduce of 'bad'") as error:
            run(tf.ones([3]), tf.ones([1 + (RANK == LAST)]))
        on_all_ranks(error.value.message.partition("allreduce of")[2].partition("\n")[0])
        assert run(tf.ones([3]), tf.ones([1]))[7].numpy().tolist() == [SIZE] * 3


@modes
def test_bad_arguments_are_refused_here(mode):
    cases = {
        "invalid root rank 9": lambda: ops.broadcast(tf.ones([2]), root_rank=9, name="r"),
        "Process set provided does not exist": lambda: ops.allreduce(tf.ones([2]), set_id=77, name="s"),
        "expects a 1D splits tensor": lambda: ops.alltoall(tf.ones([2]), tf.ones([1, 1], tf.int32), name="t"),
        r"Number of entries in splits \(0\)": lambda: ops.alltoall(tf.ones([2]), tf.zeros([0], tf.int32), name="u"),
        "negative entry": lambda: ops.alltoall(tf.ones([2]), tf.constant([-1] * SIZE), name="v"),
        "greater than the first dimension": lambda: ops.alltoall(tf.ones([2]), tf.constant([9] * SIZE), name="w"),
        # The sum of these does not fit into 64 bits.
        r"\(9223372036854775807\) is greater than the first dimension of tensor \(2\)": lambda: ops.alltoall(
            tf.ones([2]), tf.constant([2**63 - 1] * SIZE, tf.int64), name="y"
        ),
    }
    for text, call in cases.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            mode(lambda call=call: call())()
    with pytest.raises(tf.errors.UnimplementedError, match="Average of bool is not supported"):
        mode(lambda: ops.allreduce(tf.constant([True]), op=int(Op.AVERAGE), name="x"))()
    assert ops.allreduce(1.0, name="afterwards").numpy() == SIZE


@modes
def test_ranks_that_wait_for_each_other_are_told(ended, monkeypatch, mode):
    """A tensor that one rank alone reduces. In a graph, where nobody is seen to wait, patience is longer."""
    monkeypatch.setenv("HVDLITE_DEADLOCK_TIMEOUT", "0.02")
    ended.init()

    @mode
    def run(x):
        return ops.allreduce(x, name="wieght" if RANK == LAST else "weight")

    with pytest.raises(tf.errors.DeadlineExceededError, match="'wieght'"):
        run(tf.ones([2]))
    assert ops.allreduce(1.0, name="weight").numpy() == SIZE


def test_without_initialisation_it_is_a_failed_precondition(ended):
    calls = [
        lambda: ops.allreduce(1.0, name="early"),
        ops.rank,
        ops.size,
        tf.function(lambda: ops.allreduce(1.0, name="early")),
    ]
    for call in calls:
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"Horovod has not been initialized; use hvd\.init"):
            call()


# --- numbers, process sets, barrier and join -------------------------------------------------------------------------------


@modes
def test_numbers_are_those_of_the_process_that_runs(hvd, mode):
    @mode
    def run():
        return hvd.size_op(), hvd.rank_op(), hvd.local_size_op(), hvd.local_rank_op(), hvd.process_set_included_op()

    for _ in REPEATS:
        found = [int(number) for number in run()]
        assert found == [SIZE, RANK, hvd.local_size(), hvd.local_rank(), 1]


@modes
def test_process_sets(hvd, mode):
    hvd.init(process_sets="dynamic")
    others, alone = hvd.add_process_set(range(LAST)), hvd.add_process_set([LAST])
    mine = alone if RANK == LAST else others
    ranks = mine.ranks

    @mode
    def run(x):
        common = {"name": "on_set", "set_id": mine.process_set_id}
        rows = ops.allgather(x[None], **common)
        return ops.allreduce(x, **common), rows, ops.broadcast(x, root_rank=ranks[-1], **common), ops.size(mine.process_set_id)

    for _ in REPEATS:
        total, rows, sent, count = run(tf.constant(RANK + 1.0))
        assert rows.numpy().tolist() == [rank + 1.0 for rank in ranks]
        assert (total.numpy(), sent.numpy(), int(count)) == (sum(ranks) + len(ranks), ranks[-1] + 1.0, len(ranks))
        included = mode(lambda: [hvd.process_set_included_op(each.process_set_id) for each in (others, alone)])()
        assert [int(number) for number in included] == [int(RANK != LAST), int(RANK == LAST)]
    if RANK != LAST:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"rank {RANK} is not a member"):
            ops.allreduce(1.0, name="outside", set_id=alone.process_set_id)
    ops.barrier()
    hvd.remove_process_set(alone)
    hvd.remove_process_set(others)


@modes
def test_join(mode):
    """The last rank does more than the others, which have joined."""

    @mode
    def step(x):
        return ops.allreduce(x, name="more")

    joined = mode(lambda: ops.join())
    for _ in REPEATS:
        if RANK == LAST:
            found = [step(tf.constant(float(i))).numpy() for i in range(3)]
            assert found == [0.0, 1.0, 2.0]
        last = joined().numpy()
        assert WORLD.allgather(int(last)) == [int(last)] * SIZE
        assert ops.allreduce(tf.constant(1.0)).numpy() == SIZE
