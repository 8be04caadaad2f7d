"""Tests of TensorFlow's tensors on GPUs, by whatever way they get from rank to rank."""

import os

import numpy as np
import pytest
from support.gpu import MODE, count_gpus
from support.world import WORLD, on_all_ranks

tf = pytest.importorskip("tensorflow")

import hvdlite.tensorflow as hvd  # noqa: E402
from hvdlite.runtime import RUNTIME  # noqa: E402
from hvdlite.tensorflow import collective_ops, library  # noqa: E402

RANK, SIZE = WORLD.rank, WORLD.size
ON_FAKES = os.environ.get(MODE) == "fakes"
DEVICE = "/GPU:0"
MODES = {"eager": lambda function: function, "graph": tf.function}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


@pytest.fixture(scope="module", autouse=True)
def initialised():
    """Each rank sees one GPU."""
    hvd.init()
    if ON_FAKES:
        from support import fake_tensorflow

        fake_tensorflow.install(RANK)
    else:
        gpus = tf.config.list_physical_devices("GPU")
        if not gpus:
            pytest.skip("this TensorFlow cannot use the GPU")
        tf.config.set_visible_devices(gpus[hvd.local_rank() % count_gpus()[0]], "GPU")


def operations():
    """How many operations on GPU memory this rank's engine has done."""
    counters = RUNTIME.require().counters()
    return counters["nccl_ops"] + counters["staged_ops"]


def late(tensor, summand):
    """tensor + summand, on the GPU, but a while later than the host hands it over."""
    if ON_FAKES:
        from support import fake_tensorflow

        return fake_tensorflow.add(tensor, summand, 0.01)
    return tensor + library._late_number(summand, 50)


def values(rank, count=1000, salt=0):
    return (np.arange(count) % 97 + 7 * rank + salt).astype(np.float32)


def everyone(count=1000, salt=0):
    return sum(values(rank, count, salt) for rank in range(SIZE))


@modes
def test_what_is_computed_before_and_after(mode, in_gpu_memory):
    """An input that is still to be computed when the operation is asked for, and a result that is used at once."""

    @mode
    def step(tensor):
        with tf.device(DEVICE):
            return late(hvd.allreduce(late(tensor, 3.0), op=hvd.Sum, name="before.after"), 1.0)

    with in_gpu_memory():
        for salt in range(5):
            result = step(tf.constant(values(RANK, salt=salt)))
            np.testing.assert_array_equal(result.numpy(), everyone(salt=salt) + 3 * SIZE + 1)
    assert "GPU" in result.device


@modes
def test_many_at_once(mode, in_gpu_memory):
    """In a graph all are in flight together."""
    names = list(range(12))

    @mode
    def step(tensors):
        with tf.device(DEVICE):
            return [hvd.allreduce(late(tensors[i], float(i)), op=hvd.Sum, name=f"many.{i}") for i in names]

    with in_gpu_memory():
        for salt in range(3):
            results = step([tf.constant(values(RANK, 100 + i, salt)) for i in names])
            for i, result in enumerate(results):
                np.testing.assert_array_equal(result.numpy(), everyone(100 + i, salt) + i * SIZE)


@modes
def test_results_that_the_engine_makes(mode, in_gpu_memory):
    """Of allgather, reducescatter and alltoall the shape is known last. Their memory is used again and again."""

    @mode
    def step(rows, even, sent, splits):
        with tf.device(DEVICE):
            gathered = hvd.allgather(late(rows, 1.0), name="gather")
            scattered = hvd.reducescatter(late(even, 1.0), op=hvd.Sum, name="scatter")
            received, counts = hvd.alltoall(late(sent, 1.0), splits=splits, name="alltoall")
            return late(gathered, 1.0), late(scattered, 1.0), late(received, 1.0), counts

    splits = [[sender + receiver for receiver in range(SIZE)] for sender in range(SIZE)]
    offsets = np.cumsum([[0, *row[:-1]] for row in splits], axis=1)
    with in_gpu_memory():
        for salt in range(5):
            sent = [values(rank, sum(splits[rank]), salt) for rank in range(SIZE)]
            gathered, scattered, received, counts = step(
                tf.constant(values(RANK, 10 * RANK, salt)),
                tf.constant(values(RANK, 6 * SIZE, salt)),
                tf.constant(sent[RANK]),
                tf.constant(splits[RANK]),
            )
            rows = [values(rank, 10 * rank, salt) for rank in range(SIZE)]
            np.testing.assert_array_equal(gathered.numpy(), np.concatenate(rows) + 2)
            np.testing.assert_array_equal(scattered.numpy(), everyone(6 * SIZE, salt)[6 * RANK : 6 * RANK + 6] + SIZE + 1)
            parts = [sent[rank][offsets[rank][RANK] :][: splits[rank][RANK]] for rank in range(SIZE)]
            np.testing.assert_array_equal(received.numpy(), np.concatenate(parts) + 2)
            assert counts.numpy().tolist() == [splits[rank][RANK] for rank in range(SIZE)]


@modes
def test_broadcast_and_groups(mode, in_gpu_memory):
    """Also of tensors without elements, whose memory is nowhere."""
    root = SIZE - 1

    @mode
    def step(tensor, group):
        with tf.device(DEVICE):
            sent = hvd.broadcast(late(tensor, 2.0), root_rank=root, name="broadcast")
            sums = hvd.grouped_allreduce([late(each, 1.0) for each in group], op=hvd.Sum, name="group")
            return [late(sent, 0.0), *sums]

    counts = [5, 0, 300]
    with in_gpu_memory():
        for salt in range(3):
            group = [tf.constant(values(RANK, count, salt)) for count in counts]
            sent, *sums = step(tf.constant(values(RANK, salt=salt)), group)
            np.testing.assert_array_equal(sent.numpy(), values(root, salt=salt) + 2)
            for count, result in zip(counts, sums, strict=True):
                np.testing.assert_array_equal(result.numpy(), everyone(count, salt) + SIZE)
            np.testing.assert_array_equal(hvd.allreduce(tf.zeros([0]), name="nothing").numpy(), np.zeros(0))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64", "uint8"])
def test_dtypes(dtype, in_gpu_memory):
    """Also those that TensorFlow's own kernels keep in host memory."""
    mine, total = values(RANK, 33).astype(dtype), everyone(33).astype(dtype)
    with in_gpu_memory(), tf.device(DEVICE):
        tensor = tf.identity(tf.constant(mine))
        for _ in range(3):
            np.testing.assert_array_equal(hvd.allreduce(tensor, op=hvd.Sum, name=dtype).numpy(), total)


def test_ranks_disagree(in_gpu_memory):
    """All hear who has what, and go on."""
    if SIZE == 1:
        pytest.skip("needs two ranks")
    with in_gpu_memory(), tf.device(DEVICE):
        with pytest.raises(tf.errors.FailedPreconditionError, match="disagree") as caught:
            hvd.allreduce(late(tf.zeros([3 + RANK]), 1.0), name="disagree")
        on_all_ranks(caught.value.message)
        result = hvd.allreduce(late(tf.fill([4], RANK + 1.0), 1.0), op=hvd.Sum, name="agree")
    np.testing.assert_array_equal(result.numpy(), np.full(4, SIZE * (SIZE + 3) / 2))


def test_ops_that_have_no_tensors():
    with tf.device(DEVICE):
        collective_ops.barrier()
        assert int(collective_ops.size()) == SIZE
        assert int(collective_ops.join()) in range(SIZE)
