"""Errors of the TensorFlow door are of TensorFlow's classes, found early or late; names of Horovod that are not public."""

import pickle

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from tensors import modes  # noqa: E402
from tf_reference import WORLD  # noqa: E402

import hvdlite  # noqa: E402
from hvdlite import errors  # noqa: E402
from hvdlite.tensorflow.errors import make_tensorflows  # noqa: E402

RANKS = (2,)
RANK, SIZE = WORLD.rank, WORLD.size


def rows():
    return tf.reshape(tf.range(4 * SIZE, dtype=tf.float32) + RANK, [2 * SIZE, 2])


CALLS = {
    "allreduce": lambda hvd, **other: hvd.allreduce(rows(), **other),
    "grouped_allreduce": lambda hvd, **other: hvd.grouped_allreduce([rows(), rows()], **other),
    "allgather": lambda hvd, **other: hvd.allgather(rows(), **other),
    "grouped_allgather": lambda hvd, **other: hvd.grouped_allgather([rows(), rows()], **other),
    "broadcast": lambda hvd, **other: hvd.broadcast(rows(), SIZE - 1, **other),
    "broadcast_": lambda hvd, **other: hvd.broadcast_([tf.Variable(rows())], SIZE - 1, **other),
    "alltoall": lambda hvd, **other: hvd.alltoall(rows(), **other),
    "reducescatter": lambda hvd, **other: hvd.reducescatter(rows(), **other),
    "grouped_reducescatter": lambda hvd, **other: hvd.grouped_reducescatter([rows(), rows()], **other),
    "broadcast_object": lambda hvd, **other: hvd.broadcast_object(RANK, SIZE - 1, **other),
    "allgather_object": lambda hvd, **other: hvd.allgather_object(RANK, **other),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_rank_outside_of_the_set_gets_an_error_of_tensorflow(hvd, call):
    """Horovod's does; programs of Horovod catch this class."""
    for members in ([rank] for rank in range(SIZE)):
        other = hvd.add_process_set(members)
        if RANK not in members:
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"Rank {RANK} is not a member") as caught:
                CALLS[call](hvd, process_set=other)
            assert isinstance(caught.value, errors.InvalidArgumentError)
            assert isinstance(caught.value, ValueError)
        hvd.remove_process_set(other)


@pytest.mark.parametrize("call", CALLS)
def test_a_number_is_no_process_set(hvd, call):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"process_set=0 is no ProcessSet; hvdlite\.add_process_set"):
        CALLS[call](hvd, process_set=0)


@modes
def test_both_classes_also_while_a_function_is_traced(hvd, mode):
    other = hvd.add_process_set([SIZE - 1])

    @mode
    def step(value):
        return hvd.allreduce(value, process_set=other)

    if not other.included():
        with pytest.raises(tf.errors.InvalidArgumentError, match="is not a member of the provided process set"):
            step(rows())
    hvd.remove_process_set(other)


def test_objects_of_different_kinds_are_a_failed_precondition(hvd):
    with pytest.raises(tf.errors.FailedPreconditionError, match="root rank differs") as caught:
        hvd.broadcast_object({"from": RANK}, RANK, name="different roots")
    assert isinstance(caught.value, errors.HorovodInternalError)


def test_without_init_it_is_a_failed_precondition(ended):
    with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
        ended.allgather_object(RANK)


@pytest.mark.parametrize("code", errors.ERRORS)
def test_an_error_of_both_is_all_that_it_was(code):
    row = errors.ERRORS[code]
    given = row.python(f"what happened on rank {RANK}")
    text, cause = str(given), ValueError("why")
    given.__cause__ = cause
    make_tensorflows(given)
    theirs = getattr(tf.errors, f"{row.tensorflow.title().replace('_', '')}Error")
    assert isinstance(given, theirs)
    assert isinstance(given, row.python)
    assert type(given).__name__ == row.python.__name__
    assert (str(given), given.message, given.args) == (text, text, (text,))
    assert (given.code, given.error_code, given.__cause__) == (code, getattr(tf.errors, row.tensorflow), cause)
    again = pickle.loads(pickle.dumps(given))
    assert (type(again), str(again)) == (type(given), text)
    longer = type(given)(given.node_def, given.op, f"{text}, in a layer", given.error_code)  # as Keras says where it was
    assert str(longer) == f"{text}, in a layer"
    make_tensorflows(given)  # once more changes nothing
    assert type(given) is type(again)


# --- names that are not public ----------------------------------------------------------------------------------------------


def test_names_that_programs_borrow(hvd):
    assert hvd._executing_eagerly() is True
    assert tf.function(hvd._executing_eagerly, autograph=False)() is not None
    assert hvd.gpu_available("tensorflow") == bool(tf.config.list_physical_devices("GPU"))
    first = tf.Variable(1.0)
    assert hvd.refs_to_vars(hvd.vars_to_refs([first]))[0] is first
    added = hvd.mpi_ops._allreduce(tf.fill([3], RANK + 1.0))
    assert added.numpy().tolist() == [sum(range(1, SIZE + 1))] * 3
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
    assert isinstance(optimizer, hvd._DistributedOptimizer)
    assert optimizer._optimizer is optimizer
    with pytest.raises(errors.UnsupportedError, match="Own derives from Horovod's _DistributedOptimizer"):
        type("Own", (hvd._DistributedOptimizer,), {})(optimizer)


def test_names_that_are_refused_say_what_to_use(hvd):
    remedies = {
        "split_list": "horovod.common.util",
        "_make_allreduce_grads_fn": "grouped_allreduce",
        "isend": "hvdlite.isend with NumPy arrays",
    }
    for name, remedy in remedies.items():
        assert not hasattr(hvd, name)
        with pytest.raises(AttributeError, match=f"hvdlite.tensorflow does not offer {name}: .*{remedy}") as caught:
            getattr(hvd, name)
        assert isinstance(caught.value, errors.UnsupportedError)


def test_a_name_with_a_nul_is_refused(hvd):
    for call in (hvd.allreduce, hvd.allgather):  # in graphs other characters become underscores
        with pytest.raises(errors.InvalidArgumentError, match=r"'a\\x00b' has a null character"):
            call(tf.ones(3), name="a\0b")


def test_a_tensor_of_a_graph_is_refused_outside_of_this_door(hvd):
    for function in (hvdlite.allreduce, hvdlite.allgather):
        with pytest.raises(
            NotImplementedError, match=r"TensorFlow is building a graph: use the functions of hvdlite\.tensorflow"
        ):
            tf.function(function, autograph=False)(tf.ones(3))


def test_dtypes_that_dlpack_lacks_travel_outside_of_this_door(hvd):
    tensor = tf.cast(tf.fill([2], RANK + 1.0), tf.dtypes.experimental.float8_e5m2)
    assert hvdlite.broadcast(tensor, SIZE - 1).astype(np.float32).tolist() == [SIZE] * 2


def test_tensors_whose_bytes_are_not_their_values_are_refused_outside_of_this_door(hvd):
    """TensorFlow ends the process if it is asked for the first two by DLPack."""
    quantized = tf.quantization.quantize(tf.ones(2), 0, 1, tf.quint8).output
    for tensor in (tf.constant(["a"]), tf.Variable(1.0).handle, quantized):
        with pytest.raises(ValueError, match=f"a tensor of dtype {tensor.dtype.name} cannot be sent"):
            hvdlite.broadcast(tensor, 0)
