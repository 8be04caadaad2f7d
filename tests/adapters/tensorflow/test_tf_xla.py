"""Collectives in programs that XLA compiles (jit_compile=True)."""

import types
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from support.cases import REDUCTIONS, SHAPES, Op, Reduction
from support.world import REPEATS, WORLD, check, inputs, on_all_ranks

tf = pytest.importorskip("tensorflow")

from hvdlite import allreduce  # noqa: E402
from hvdlite.dtypes import DType  # noqa: E402
from hvdlite.errors import InvalidArgumentError, MismatchError, OperationTimeoutError, UnsupportedError  # noqa: E402
from hvdlite.requests import Average, Max, Sum  # noqa: E402
from hvdlite.tensorflow import collective_ops as ops  # noqa: E402
from hvdlite.tensorflow import xla  # noqa: E402
from hvdlite.xla import failure_in  # noqa: E402

RANKS = (2,)
RANK, SIZE = WORLD.rank, WORLD.size
ODD = RANK == SIZE - 1
FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)

pytestmark = pytest.mark.usefixtures("hvd")


def compiled(function):
    return tf.function(function, jit_compile=True, autograph=False)


def to_tensor(array):
    if array.dtype == ml_dtypes.bfloat16:
        return tf.bitcast(tf.constant(array.view(np.uint16)), tf.bfloat16)
    return tf.constant(array)


def to_array(tensor):
    if tensor.dtype == tf.bfloat16:
        return tf.bitcast(tensor, tf.uint16).numpy().view(ml_dtypes.bfloat16)
    return np.asarray(tensor)


def check_all(outputs, everyone, reductions, **factors):
    for output, arrays, reduction in zip(outputs, everyone, reductions, strict=True):
        check(to_array(output), arrays, reduction, str(reduction), **factors)


@pytest.mark.parametrize("op", Op, ids=lambda op: op.name.lower())
def test_all_dtypes_in_one_call(op):
    reductions = [reduction for reduction in REDUCTIONS if reduction.op is op]
    step = compiled(lambda tensors: ops.grouped_allreduce(tensors, name=f"xla.dtypes.{op}", op=int(op)))
    for repeat in REPEATS:  # one program, other values
        everyone = [inputs(reduction, (13 + place,), repeat) for place, reduction in enumerate(reductions)]
        check_all(step([to_tensor(arrays[RANK]) for arrays in everyone]), everyone, reductions)


def test_shapes_factors_and_names():
    name = 'a "quoted" \\ name, <ünd> more'
    step = compiled(lambda tensors: ops.grouped_allreduce(tensors, name=name, op=Sum, prescale=0.5, postscale=3.0))
    for repeat in REPEATS:
        everyone = [inputs(FLOAT_SUM, shape, repeat) for shape in SHAPES]
        outputs = step([to_tensor(arrays[RANK]) for arrays in everyone])
        check_all(outputs, everyone, [FLOAT_SUM] * len(SHAPES), prescale=0.5, postscale=3.0)
    assert compiled(lambda: ops.grouped_allreduce([], name="nothing"))() == []


def test_calls_that_depend_on_nothing_run_in_one_order():
    @compiled
    def step(tensors):
        return [tf.cos(ops.allreduce(tf.sin(tensor), name=f"xla.call{i}", op=Max)) for i, tensor in enumerate(tensors)]

    tensors = [tf.fill([200_000], 0.1 * RANK + 0.001 * place) for place in range(12)]
    for _ in REPEATS:
        for place, output in enumerate(step(tensors)):
            assert np.allclose(output, np.cos(np.sin(0.1 * (SIZE - 1) + 0.001 * place)))


def test_in_branches_loops_and_functions_within():
    @tf.function
    def inner(x):
        return ops.allreduce(x, name="xla.inner", op=Sum)

    @compiled
    def step(x):
        x = tf.cond(tf.reduce_sum(x) > 0, lambda: ops.allreduce(x, name="xla.branch", op=Sum), lambda: x)
        (x,) = tf.while_loop(lambda x: tf.reduce_max(x) < 100, lambda x: [ops.allreduce(x, name="xla.loop", op=Sum)], [x])
        return inner(x)

    for _ in REPEATS:
        value = sum(range(1, SIZE + 1))
        while value < 100:
            value *= SIZE
        assert step(tf.fill([2], RANK + 1.0)).numpy().tolist() == [value * SIZE] * 2


@pytest.mark.parametrize("op", [Average, Sum])
def test_the_gradient_is_the_same_reduction(op):
    weight = tf.Variable([1.0, 2.0])

    @compiled
    def step():
        with tf.GradientTape() as tape:
            first, second = ops.grouped_allreduce([weight * (RANK + 1.0), weight**2], name=f"xla.grad{op}", op=op)
            loss = (RANK + 2.0) * tf.reduce_sum(first) + tf.reduce_sum(second)
        return tape.gradient(loss, weight)

    share = 1 if op == Sum else 1 / SIZE
    incoming = sum(rank + 2.0 for rank in range(SIZE)) * share
    for _ in REPEATS:
        assert np.allclose(step(), incoming * (RANK + 1.0) + SIZE * share * 2 * weight.numpy())


def test_the_gradient_of_a_group_with_integers_if_the_tape_is_outside():
    step = compiled(lambda x: ops.grouped_allreduce([tf.constant([1, 2]), x], name="xla.integers", op=Sum)[1])
    x = tf.ones(2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = step(x)
    assert tape.gradient(y, x).numpy().tolist() == [SIZE, SIZE]


def test_a_gradient_of_max_is_refused():
    @compiled
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = ops.allreduce(x, name="xla.max", op=Max)
        return tape.gradient(y, x)

    with pytest.raises(UnsupportedError, match="op=Max has no gradient"):
        step(tf.ones(2))


def test_the_thread_of_a_program_does_not_hide_a_deadlock():
    """A thread in which XLA has run a collective may live as long as the process and never call again."""
    step = compiled(lambda x: ops.allreduce(x, name="xla.pool", op=Sum))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: step(tf.ones(2)).numpy().tolist()).result() == [SIZE] * 2
        with pytest.raises(OperationTimeoutError, match=r"deadlock: .* rank 0 waits for allreduce of 'only0'"):
            allreduce(np.ones(2), name=f"only{RANK}")


def test_a_mismatch_says_so_and_the_engine_goes_on():
    step = compiled(lambda x: ops.allreduce(x, name="xla.t", op=Sum))
    for _ in REPEATS:
        with pytest.raises(tf.errors.InternalError, match=r"hvdlite error 2: allreduce of 'xla.t_1of1'") as error:
            step(tf.ones(3 + ODD))
        failure = failure_in(error.value)
        assert type(failure) is MismatchError
        on_all_ranks(str(failure))
        assert str(failure).endswith("give them one shape or different names")
        assert step(tf.ones(2)).numpy().tolist() == [SIZE] * 2


@pytest.mark.parametrize("what", ["broadcast", "alltoall", "grouped_allgather", "size"])
def test_other_operations_are_refused_with_what_to_set(what):
    calls = {
        "broadcast": lambda: ops.broadcast(tf.ones(2), root_rank=0, name="xla.b"),
        "alltoall": lambda: ops.alltoall(tf.ones(2), name="xla.a")[0],
        "grouped_allgather": lambda: ops.grouped_allgather([tf.ones(2)], name="xla.g"),
        "size": ops.size,
    }
    with pytest.raises(UnsupportedError, match=f"^{what} cannot be compiled by XLA.*jit_compile=False"):
        compiled(calls[what])()


def test_an_unknown_shape_is_refused():
    function = tf.function(
        lambda x: ops.allreduce(x, name="xla.unknown"),
        jit_compile=True,
        autograph=False,
        input_signature=[tf.TensorSpec([None], tf.float32)],
    )
    with pytest.raises(InvalidArgumentError, match=r"the shape of .* is \(None,\)"):
        function(tf.ones(2))


def test_what_this_tensorflow_may_lack(monkeypatch):
    """Each says what to set."""
    require = xla._require.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
        with pytest.raises(UnsupportedError, match=r"on CPUs only.*jit_compile=False"):
            require()
    with monkeypatch.context() as patch:
        library = types.SimpleNamespace(hvdlite_tensorflow_register_xla=lambda: 0)
        patch.setattr(xla.ctypes, "CDLL", lambda path: library)
        with pytest.raises(UnsupportedError, match=r"does not let hvdlite register custom calls.*jit_compile=False"):
            require()
        library.hvdlite_tensorflow_register_xla = lambda: 1
        patch.setattr(xla, "_custom_call", lambda target, operands, config: operands)
        with pytest.raises(UnsupportedError, match=r"do not work as hvdlite expects.*jit_compile=False"):
            require()
