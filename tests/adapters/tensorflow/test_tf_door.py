"""What users of ``horovod.tensorflow`` call: names, arguments, IndexedSlices, compression, names in graphs, refusals."""

import importlib
import inspect

import numpy as np
import pytest
from support.codecs import INT8, reduced

tf = pytest.importorskip("tensorflow")

from tensors import modes  # noqa: E402
from tf_reference import WORLD, assert_close, assert_same_bits  # noqa: E402

import hvdlite.tensorflow as door  # noqa: E402
from hvdlite.errors import InvalidArgumentError, UnsupportedError  # noqa: E402
from hvdlite.tensorflow.gradients import allreduce_gradients  # noqa: E402
from hvdlite.tensorflow.names import collective_name  # noqa: E402

RANKS = (2,)
RANK, SIZE = WORLD.rank, WORLD.size

# horovod.tensorflow's of version 0.28.
NAMES = """
    elastic Compression allgather_object broadcast_object broadcast_object_fn broadcast_variables allgather grouped_allgather
    broadcast broadcast_ alltoall init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank
    local_rank cross_rank is_homogeneous rank_op local_rank_op size_op local_size_op process_set_included_op
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built
    ProcessSet global_process_set add_process_set remove_process_set Average Sum Adasum Min Max Product join
    SyncBatchNormalization allreduce grouped_allreduce reducescatter grouped_reducescatter broadcast_global_variables
    BroadcastGlobalVariablesHook DistributedOptimizer DistributedGradientTape PartialDistributedGradientTape
"""
# What Horovod has not.
OURS = {"Stats", "check_consistency", "child_environment", "gather_stats", "mark_step", "stall_limit", "stats"}
OURS |= {"recv", "recv_object", "recv_object_list", "send", "send_object", "send_object_list"}
SUBMODULES = (
    "compression",
    "elastic",
    "functions",
    "mpi_ops",
    "sync_batch_norm",
    "util",
    "keras",
    "keras.callbacks",
    "keras.elastic",
)

_SCALED = "prescale_factor=1.0, postscale_factor=1.0"
_REDUCED = f"average=None, device_dense='', device_sparse='', compression=none, op=None, {_SCALED}"
_GATHERED = "name=None, ignore_name_scope=False, process_set=everyone"
_TAPE = (
    "gradtape, device_dense='', device_sparse='', compression=none, sparse_as_dense=False, op=Average, "
    "gradient_predivide_factor=1.0, num_groups=0, groups=None, process_set=everyone"
)
SIGNATURES = {
    "allreduce": f"tensor, {_REDUCED}, name=None, process_set=everyone, ignore_name_scope=False",
    "grouped_allreduce": f"tensors, {_REDUCED}, process_set=everyone, ignore_name_scope=False, name=None",
    "allgather": f"tensor, {_GATHERED}",
    "grouped_allgather": f"tensors, {_GATHERED}",
    "broadcast": f"tensor, root_rank, {_GATHERED}",
    "broadcast_": "variables, root_rank, name=None, process_set=everyone",
    "alltoall": f"tensor, splits=None, {_GATHERED}",
    "reducescatter": (
        "tensor, device_dense='', compression=none, op=Average, name=None, process_set=everyone, ignore_name_scope=False, "
        + _SCALED
    ),
    "grouped_reducescatter": f"tensors, device_dense='', compression=none, op=Average, process_set=everyone, {_SCALED}",
    "join": "",
    "size_op": "process_set_id=0, name=None",
    "process_set_included_op": "process_set_id=0, name=None",
    "rank_op": "name=None",
    "local_rank_op": "name=None",
    "local_size_op": "name=None",
    "broadcast_variables": "variables, root_rank, process_set=everyone, inplace=False",
    "broadcast_object": "obj, root_rank=0, session=None, name=None, process_set=everyone",
    "broadcast_object_fn": "root_rank=0, session=None, name=None, process_set=everyone",
    "allgather_object": "obj, session=None, name=None, process_set=everyone",
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": "root_rank, device=''",
    "DistributedOptimizer": (
        "optimizer, name=None, use_locking=False, device_dense='', device_sparse='', compression=none, sparse_as_dense=False, "
        "backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0, average_aggregated_gradients=False, "
        "num_groups=0, groups=None, process_set=everyone, scale_local_gradients=True, "
        "start_check=None"
    ),
    "DistributedGradientTape": f"{_TAPE}, scale_local_gradients=True, start_check=None",
    "PartialDistributedGradientTape": f"{_TAPE}, local_layers=None, scale_local_gradients=True, start_check=None",
    "keras.DistributedOptimizer": (
        "optimizer, name=None, device_dense='', device_sparse='', compression=none, sparse_as_dense=False, "
        "gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, average_aggregated_gradients=False, "
        "num_groups=0, groups=None, process_set=everyone, scale_local_gradients=True"
    ),
    "keras.allreduce": f"value, name=None, average=None, {_SCALED}, op=None, compression=none",
    "keras.allgather": "value, name=None",
    "keras.broadcast": "value, root_rank, name=None",
    "keras.reducescatter": "value, name=None, op=Average",
    "keras.callbacks.BestModelCheckpoint": (
        "monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch'"
    ),
    "elastic.run": "func",
    "elastic.TensorFlowState": "variables=None, session=None",
    "elastic.TensorFlowKerasState": "model, optimizer=None, backend=None",
}


def test_names():
    assert {*NAMES.split(), *OURS} == set(door.__all__)
    for name in door.__all__:
        assert getattr(door, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'allreduc'"):
        door.allreduc  # noqa: B018
    for name in SUBMODULES:
        module = importlib.import_module(f"hvdlite.tensorflow.{name}")
        assert all(getattr(module, each) is not None for each in getattr(module, "__all__", ()))


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    values = {"none": door.Compression.none, "everyone": door.global_process_set, "Average": door.Average}
    theirs = inspect.signature(eval(f"lambda {SIGNATURES[name]}: None", values)).parameters
    module, _, function = name.rpartition(".")
    owner = importlib.import_module(f"hvdlite.tensorflow.{module}") if module else door
    ours = inspect.signature(getattr(owner, function)).parameters.values()
    positional = [each for each in ours if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert [each.name for each in positional] == list(theirs)
    assert [each.default for each in positional] == [each.default for each in theirs.values()]


@modes
def test_indexed_slices(hvd, mode):
    def slices(rank):
        return tf.IndexedSlices(tf.ones([rank + 1, 2]) * (rank + 1), tf.range(rank + 1), tf.constant([4, 2]))

    for compression in (hvd.Compression.none, hvd.Compression.bf16):

        @mode
        def reduce(values, indices, compression=compression):
            given = tf.IndexedSlices(values, indices, tf.constant([4, 2]))
            return hvd.allreduce(given, op=hvd.Sum, prescale_factor=3.0, compression=compression), hvd.allreduce(given)

        own = slices(RANK)
        total, average = reduce(own.values, own.indices)
        expected = sum(tf.convert_to_tensor(slices(rank)) for rank in range(SIZE))
        assert_close([total, average], [3.0 * expected, expected / SIZE], 1e-6)
    with pytest.raises(UnsupportedError, match="op=Average or op=Sum, not Max"):
        hvd.allreduce(slices(RANK), op=hvd.Max)
    with pytest.raises(UnsupportedError, match="cannot reduce IndexedSlices"):
        hvd.reducescatter(slices(RANK))
    whole = tf.IndexedSlices(tf.constant([[3 + RANK]]), tf.constant([0]), tf.constant([4, 1]))
    assert hvd.allreduce(whole, op=hvd.Sum).values.numpy().tolist() == [[3 + rank] for rank in range(SIZE)]
    with pytest.raises(UnsupportedError, match="IndexedSlices of int32 have no mean"):
        hvd.allreduce(whole)


def test_every_reduction_checks_its_compression(hvd):
    row = tf.constant([[1.0 * RANK, 2.0]])
    slices = tf.IndexedSlices(row, tf.constant([0]), tf.constant([1, 2]))
    both = tf.concat([row] * SIZE, 0)
    calls = (
        lambda **how: hvd.allreduce(row, **how),
        lambda **how: hvd.allreduce(slices, **how),
        lambda **how: hvd.reducescatter(both, **how),
        lambda **how: hvd.grouped_reducescatter([both], **how)[0],
    )
    for call in calls:
        assert_close([tf.convert_to_tensor(call(compression=None))], [tf.constant([[(SIZE - 1) / 2, 2.0]])])
        with pytest.raises(InvalidArgumentError, match="compression must have the methods"):
            call(compression="fp16")


@modes
def test_groups_with_slices_and_compression(hvd, mode):
    @mode
    def reduce(dense, whole, values):
        tensors = [dense, tf.IndexedSlices(values, tf.constant([1]), tf.constant([2, 2])), whole]
        return hvd.grouped_allreduce(tensors, op=hvd.Sum, compression=hvd.Compression.fp16, name="mixed")

    first, second, third = reduce(tf.fill([3], RANK + 1.5), tf.constant([RANK, 7]), tf.fill([1, 2], RANK + 1.0))
    ranks = sum(range(SIZE))
    assert first.dtype == tf.float32
    assert_close([first, third], [tf.fill([3], ranks + 1.5 * SIZE), tf.constant([ranks, 7 * SIZE])])
    assert_close([second], [tf.constant([[0.0, 0.0], [ranks + SIZE, ranks + SIZE]])])


@modes
def test_codecs_forward_and_backward(hvd, mode):
    codec = hvd.Compression.int8(64, "ranks")

    def of_rank(rank):
        return np.sin(np.arange(100, dtype=np.float32) * (rank + 1))

    @mode
    def reduce(tensor):
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            (total,) = hvd.grouped_allreduce([tensor], op=hvd.Sum, compression=codec, name="coded")
            loss = tf.reduce_sum(total * hvd.allreduce(tensor, op=hvd.Sum, name="plain"))
        return total, tape.gradient(loss, total), hvd.allreduce(total, compression=codec, name="again")

    total, _, again = reduce(tf.constant(of_rank(RANK)))
    wanted = reduced([of_rank(rank) for rank in range(SIZE)], INT8)
    assert total.numpy().tobytes() == wanted.tobytes()
    assert again.numpy().tobytes() == reduced([wanted] * SIZE, INT8, divisor=SIZE).tobytes()
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([4, 2]))
    with pytest.raises(UnsupportedError, match=r"IndexedSlices, which .* cannot be coded"):
        hvd.allreduce(slices, compression=codec)
    with pytest.raises(UnsupportedError, match="reducescatter cannot be coded"):
        hvd.reducescatter(tf.ones([4]), compression=codec)


@modes
def test_adasum_of_a_group_and_of_each(hvd, mode):
    tensors = [tf.constant([1.0, 2.0, float(RANK)]), tf.constant([float(RANK), 1.0])]
    together = mode(lambda *tensors: hvd.grouped_allreduce(tensors, op=hvd.Adasum))(*tensors)
    alone = [hvd.allreduce(tensor, op=hvd.Adasum) for tensor in tensors]
    assert_same_bits(together)
    assert_close(together, alone, 1e-6)


@modes
def test_a_compression_of_the_users(hvd, mode):
    class Halved(hvd.compression.Compressor):
        @staticmethod
        def compress(tensor):
            return tensor[: tensor.shape[0] // 2], tensor.shape

        @staticmethod
        def decompress(tensor, ctx):
            return tf.concat([tensor, tf.zeros([ctx[0] - tensor.shape[0]])], 0)

    found = mode(lambda tensor: hvd.allreduce(tensor, compression=Halved))(tf.fill([4], float(RANK)))
    assert_close([found], [tf.constant([(SIZE - 1) / 2] * 2 + [0.0] * 2)])


def test_older_arguments(hvd):
    tensor = tf.constant([2.0 + RANK])
    with pytest.warns(DeprecationWarning, match="average"):
        assert_close([hvd.allreduce(tensor, average=False)], [hvd.allreduce(tensor, op=hvd.Sum)])
    with pytest.raises(ValueError, match="supersedes average"):
        hvd.allreduce(tensor, average=True, op=hvd.Sum)
    assert_close([hvd.allreduce([1.0 * RANK, 2], device_dense="/cpu:0")], [tf.constant([(SIZE - 1) / 2, 2.0])])


def test_alltoall_with_and_without_splits(hvd):
    even = hvd.alltoall(tf.range(2 * SIZE) + 100 * RANK)
    assert_close([even], [tf.concat([tf.range(2 * RANK, 2 * RANK + 2) + 100 * rank for rank in range(SIZE)], 0)])
    rows, received = hvd.alltoall(tf.fill([3, 1], RANK), splits=[1, 2])
    assert_close([rows[:, 0], received], [tf.repeat(tf.range(SIZE), RANK + 1), tf.fill([SIZE], RANK + 1)])


def test_reducescatter_of_a_group(hvd):
    tensors = [tf.range(SIZE, dtype=tf.float32) + RANK, tf.ones([SIZE, 2], tf.int32) * (RANK + 1)]
    found = hvd.grouped_reducescatter(tensors, op=hvd.Sum, compression=hvd.Compression.fp16)
    ranks = sum(range(SIZE))
    assert_close(found, [tf.constant([float(SIZE * RANK + ranks)]), tf.fill([1, 2], ranks + SIZE)])


# --- names ------------------------------------------------------------------------------------------------------------------


def test_names_in_graphs_follow_from_the_program():
    """Not from how often functions were traced, nor from what a rank has traced before."""
    found = []

    @tf.function
    def inner(x):
        found.append(collective_name("loss"))
        return x

    @tf.function
    def train_step(x):
        found.extend([collective_name("loss"), collective_name("loss"), collective_name(None, "allreduce.mul:0")])
        found.append(collective_name("loss", ignore_scope=True))
        with tf.name_scope("scope"):
            found.append(collective_name("loss"))
        if tf.reduce_sum(x) > 0.0:
            found.append(collective_name("branch"))
        return inner(x)

    expected = ["loss", "loss_1", "allreduce.mul_0", "scope/loss", "cond/branch", "inner/loss"]
    for rows in (1, 2):
        found.clear()
        for _ in range(RANK + rows):  # ranks differ in what they have traced
            tf.function(lambda x: x * 2.0)(tf.ones([rows]))
        train_step(tf.ones([rows]))
        assert [name for name in found if name != "loss"] == [f"train_step/{name}" for name in expected]
    assert collective_name(None, "default") == ""
    assert collective_name("loss") == "loss"


def test_scopes_in_names_are_what_ranks_are_paired_by(hvd):
    """In different orders: by name, each finds its own."""

    @tf.function
    def step(x):
        def reduce(scope):
            with tf.name_scope(scope):
                return hvd.allreduce(x * len(scope), name="x", op=hvd.Sum)

        scopes = ["a", "bb", "ccc"] if RANK else ["ccc", "bb", "a"]
        found = {scope: reduce(scope) for scope in scopes}
        return [found[scope] for scope in ("a", "bb", "ccc")]

    ranks = sum(range(SIZE))
    assert_close(step(tf.constant(float(RANK))), [tf.constant(float(factor * ranks)) for factor in (1, 2, 3)])


@pytest.mark.parametrize("inner", [lambda function: function, tf.function], ids=["traced for each call", "traced once"])
def test_a_function_called_twice_in_a_step(hvd, inner):
    """Traced once it has one set of names, to which the kernels add the call."""
    weights = tf.Variable(tf.ones([2]))

    @inner
    def gradient_of(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights * x)
        return hvd.DistributedGradientTape(tape, op=hvd.Sum).gradient(loss, weights)

    @tf.function
    def step(x):
        return gradient_of(x), gradient_of(10.0 * x)

    total = tf.ones([2]) * sum(range(1, SIZE + 1))
    for _ in range(20):
        assert_close(step(tf.ones([2]) * (RANK + 1)), [total, 10.0 * total])


# --- gradients --------------------------------------------------------------------------------------------------------------


@modes
def test_gradients_in_groups_with_none_and_slices(hvd, mode):
    @mode
    def reduce(x):
        slices = tf.IndexedSlices(x[None], tf.constant([0]), tf.constant([1, 2]))
        return [
            gradient
            for gradient in allreduce_gradients(
                [x, None, slices, x * 2.0, tf.cast(x, tf.float64)], list("abcde"), op=hvd.Sum, groups=[[4, 1, 0], [2]]
            )
            if gradient is not None
        ]

    total = tf.constant([1.0, 2.0]) * sum(range(1, SIZE + 1))
    found = reduce(tf.constant([1.0, 2.0]) * (RANK + 1))
    assert_close(found, [total, total[None], total * 2.0, tf.cast(total, tf.float64)])


def test_a_gradient_that_is_no_tensor_is_refused(hvd):
    with pytest.raises(InvalidArgumentError, match="'words' is a RaggedTensor"):
        allreduce_gradients([tf.ragged.constant([[1.0], []])], ["words"])


def test_ranks_with_different_gradients_are_told(hvd):
    gradients = [tf.ones([2]), None if RANK else tf.ones([2]), tf.ones([2])]
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"'a_1of2' in process set 0.*missing on rank"):
        allreduce_gradients(gradients, list("abc"))


# --- refusals ---------------------------------------------------------------------------------------------------------------


def test_what_concerns_one_rank_is_refused_at_once(hvd):
    other = hvd.add_process_set([SIZE - 1])
    if RANK != SIZE - 1:
        with pytest.raises(InvalidArgumentError, match="is not a member of the provided process set"):
            hvd.allreduce(tf.ones([1]), process_set=other)
    with pytest.raises(InvalidArgumentError, match="invalid root rank 0 for provided process set" if RANK else "not a member"):
        hvd.broadcast(tf.ones([1]), 0, process_set=other)
    hvd.remove_process_set(other)
    with pytest.raises(InvalidArgumentError, match="has not been registered"):
        hvd.allgather(tf.ones([1]), process_set=hvd.ProcessSet([0]))
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)
