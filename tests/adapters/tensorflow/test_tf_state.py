"""Variables and objects from one rank to all, and elastic state."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from support.world import on_all_ranks  # noqa: E402
from tf_reference import WORLD, Network, assert_close, assert_same_bits, part_of, whole_batch  # noqa: E402

from hvdlite.elastic import HostUpdateResult  # noqa: E402
from hvdlite.errors import (  # noqa: E402
    HorovodInternalError,
    HostsUpdatedInterrupt,
    InvalidArgumentError,
    MismatchError,
    UnsupportedError,
)
from hvdlite.tensorflow.elastic import TensorFlowKerasState, TensorFlowState, run  # noqa: E402

RANKS = (2,)
RANK, SIZE = WORLD.rank, WORLD.size
LAST = SIZE - 1
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "bool")


def values_of(rank):
    """Of every dtype: a scalar, an empty one and a matrix."""
    shapes = [(), (0, 3), (2, 3)]
    return [tf.cast(tf.fill(shape, 3 * rank + place), dtype) for dtype in DTYPES for place, shape in enumerate(shapes)]


@pytest.mark.parametrize("mode", [lambda function: function, tf.function], ids=["eager", "graph"])
def test_broadcast_variables(hvd, mode):
    variables = [tf.Variable(value) for value in values_of(RANK)]

    @mode
    def broadcast():
        hvd.broadcast_variables(variables, root_rank=LAST)

    broadcast()
    assert_close([tf.cast(each, tf.float64) for each in variables], [tf.cast(each, tf.float64) for each in values_of(LAST)], 0)

    @mode
    def broadcast_():
        return hvd.broadcast_(variables[:3], 0, name="again")

    variables[0].assign(float(RANK))
    found = broadcast_()
    assert_close(found, [tf.constant(0.0), *variables[1:3]], 0)
    assert_close(variables[:1], [tf.constant(0.0)], 0)


def test_variables_of_keras_and_of_tensorflow_1(hvd):
    tf.keras.utils.set_random_seed(RANK)
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2), tf.keras.layers.BatchNormalization()])
    root = WORLD.bcast([variable.numpy() for variable in model.variables], LAST)
    hvd.broadcast_variables(model.variables, LAST)
    assert_close(model.variables, root, 0)
    for use_resource in (True, False):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            variable = tf.compat.v1.get_variable("v", initializer=tf.constant([1.0, 2.0]) * RANK, use_resource=use_resource)
            broadcast = hvd.broadcast_global_variables(LAST)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(broadcast)
            assert session.run(variable).tolist() == [1.0 * LAST, 2.0 * LAST]


def test_other_variables_are_a_mismatch(hvd):
    common = tf.Variable(1.0, name="common")
    for variables, text in (
        (
            [common, tf.Variable(tf.ones([2 + RANK]), name="kernel")],
            r"kernel:0 is float32 \[2\] on rank 0, but kernel:0 is float32 \[3\]",
        ),
        (
            [common, tf.Variable(RANK or 0.0, name="epoch")],
            r"epoch:0 is float32 \[\] on rank 0, but epoch:0 is int32 \[\] on rank 1",
        ),
        ([common] * (2 - RANK), r"common:0 is float32 \[\] on rank 0, but missing on rank 1"),
    ):
        with pytest.raises(MismatchError, match=f"^broadcast_variables in process set 0: {text}") as caught:
            hvd.broadcast_variables(variables, 0)
        on_all_ranks(str(caught.value))
    with pytest.raises(InvalidArgumentError, match=f"invalid root rank {SIZE}"):
        hvd.broadcast_variables([], SIZE)


@pytest.mark.parametrize("mode", [lambda function: function, tf.function], ids=["eager", "graph"])
def test_what_cannot_be_broadcast_is_named(hvd, mode):
    words = tf.Variable(["a", "b"], name="words")
    number = tf.Variable(float(RANK), name="number")
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    for call, text in (
        (lambda: hvd.broadcast_variables([number, words], 0), "'words:0' given to broadcast_variables of dtype string"),
        (
            lambda: hvd.broadcast_variables([number, ragged], 0),
            "takes variables, but element 2 is a RaggedTensor",
        ),
        (lambda: hvd.broadcast_variables([None], 0), "element 1 is a NoneType"),
        (lambda: hvd.broadcast(None, 0), "broadcast: None is no tensor"),
        (lambda: hvd.allreduce(None, name="loss"), "allreduce of 'loss': None is no tensor"),
        (lambda: hvd.grouped_allreduce([number, None], name="losses"), "grouped_allreduce of 'losses': None is no tensor"),
        (lambda: hvd.allgather(ragged, name="rows"), "allgather of 'rows': a RaggedTensor cannot be sent; pass .to_tensor"),
        (lambda: hvd.alltoall(tf.sparse.from_dense([[1.0]]), name="s"), "alltoall of 's': a SparseTensor cannot be sent"),
        (
            lambda: hvd.reducescatter(tf.constant(["a"]), name="s"),
            "given to reducescatter of 's' of dtype string cannot be sent",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            mode(call)()
    assert number.numpy() == RANK


def test_objects(hvd):
    some = {"rank": RANK, "array": np.arange(RANK + 2)}
    assert hvd.broadcast_object(some, LAST, name="o")["array"].tolist() == list(range(LAST + 2))
    assert hvd.broadcast_object_fn(root_rank=LAST)(some)["rank"] == LAST
    assert [each["rank"] for each in hvd.allgather_object(some)] == list(range(SIZE))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert hvd.broadcast_object(RANK, 0, session=session) == 0


# --- elastic ------------------------------------------------------------------------------------------------------------------


def descend(network, step):
    batch = part_of(whole_batch(step, SIZE), RANK)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    optimizer.minimize(lambda: network.loss(*batch), var_list=network.variables)


def test_state_of_variables(hvd):
    network = Network(seed=RANK)
    other, model = tf.Variable([5.0 + RANK]), tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    state = TensorFlowState(network.variables, epoch=RANK, others=[other, model])
    state.sync()
    other.assign([0.0])
    state.restore()
    assert [mine is old for mine, old in zip(state.others, [other, model], strict=True)] == [True, True]
    assert other.numpy() == [5.0]
    assert_same_bits(model.weights)
    assert state.epoch == 0
    assert_close(network.variables, Network(seed=0).variables, 0)
    descend(network, 0)
    state.epoch = 1
    state.commit()
    committed = [variable.numpy() for variable in network.variables]
    for _ in range(2):
        descend(network, 1)
        state.epoch = 2
        state.restore()
        assert state.epoch == 1
        assert_close(network.variables, committed, 0)


class NoCopy:
    def __init__(self):
        self.fails = False

    def __deepcopy__(self, memo):
        if self.fails:
            raise ValueError("no copy")
        return self


def test_a_save_that_fails_keeps_the_state_of_one_moment(hvd):
    variable, thing = tf.Variable([1.0 + RANK]), NoCopy()
    state = TensorFlowState([variable], thing=thing, epoch=1)
    variable.assign([7.0])
    state.epoch, thing.fails = 2, True
    with pytest.raises(ValueError, match="no copy"):
        state.save()
    thing.fails = False
    state.restore()
    assert state.epoch == 1
    assert variable.numpy() == [1.0 + RANK]


def test_state_in_a_session(hvd):
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=tf.constant([1.0, 2.0]) * (RANK + 1), use_resource=True)
        with pytest.raises(InvalidArgumentError, match="needs a session"):
            TensorFlowState()
        with tf.compat.v1.Session() as session:
            session.run(tf.compat.v1.global_variables_initializer())
            state = TensorFlowState(session=session, batch=5)
            for _ in range(2):
                state.sync()
            assert session.run(variable).tolist() == [1.0, 2.0]
            session.run(variable.assign([7.0, 7.0]))
            state.restore()
            assert session.run(variable).tolist() == [1.0, 2.0]


def test_state_of_keras(hvd):
    tf.keras.utils.set_random_seed(RANK)
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    state = TensorFlowKerasState(model, None, None, batch=RANK)
    state.sync()
    assert state.batch == 0
    assert_same_bits([*model.variables, *model.optimizer.variables])


def test_run_synchronises_and_tells_of_changed_hosts(hvd):
    network = Network(seed=RANK)
    state = TensorFlowState(network.variables)
    state.on_hosts_updated(1.0, HostUpdateResult.added)

    @run
    def train(state):
        assert_same_bits(network.variables)
        state.commit()

    with pytest.raises(UnsupportedError) as raised:
        train(state)
    assert isinstance(raised.value.__cause__, HostsUpdatedInterrupt)


LOST = "rank 1 (host vm, pid 1) raised ValueError: gone. Horovod has been shut down"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (tf.errors.AbortedError(None, None, LOST), True),
        (tf.errors.UnknownError(None, None, "{{node x}} allgather of 'x' in process set 0: MPI_Isend failed"), True),
        (tf.errors.InternalError(None, None, f"hvdlite error 3: {LOST}"), True),
        (tf.errors.InternalError(None, None, "hvdlite error 2: allreduce of 'x' in process set 0: shape differs"), False),
        (tf.errors.AbortedError(None, None, "the step was cancelled"), False),
        (tf.errors.UnknownError(None, None, "no such file"), False),
        (tf.errors.FailedPreconditionError(None, None, "allreduce of 'x' in process set 0: shape differs"), False),
        (tf.errors.DeadlineExceededError(None, None, f"deadlock: allreduce of 'x' in process set 0. {LOST}"), False),
    ],
    ids=["peer lost", "system", "compiled", "compiled mismatch", "foreign", "foreign unknown", "mismatch", "deadlock"],
)
def test_only_a_lost_rank_becomes_an_internal_error(hvd, error, lost):
    """The others are raised as they are: none is swallowed."""
    state = TensorFlowState(Network(seed=RANK).variables, epoch=3)

    @run
    def train(state):
        state.epoch = 4
        raise error

    with pytest.raises(UnsupportedError if lost else type(error)) as raised:
        train(state)
    assert isinstance(raised.value.__cause__, HorovodInternalError) == lost
    assert state.epoch == (3 if lost else 4)
