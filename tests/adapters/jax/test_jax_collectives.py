"""Collectives inside compiled JAX programs."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.cases import REDUCTIONS, SHAPES, Op, Reduction
from support.codecs import FP8, reduced
from support.limits import eventually
from support.world import REPEATS, WORLD, check, distinct, inputs, on_all_ranks

from hvdlite.dtypes import DType
from hvdlite.jax import call, ffi, grouped_allreduce, grouped_broadcast
from hvdlite.requests import Kind
from hvdlite.runtime import RUNTIME
from hvdlite.xla import TensorGroup, failure_in

RANKS = (2,)
MORE_RANKS = (3,)
RANK, SIZE = WORLD.rank, WORLD.size
ODD = RANK == SIZE - 1
FLOAT_SUM = Reduction(DType.FLOAT32, Op.SUM)

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_enable_x64", True)


def check_all(outputs, everyone, reductions, **factors):
    for output, arrays, reduction in zip(outputs, everyone, reductions, strict=True):
        check(np.asarray(output), arrays, reduction, str(reduction), **factors)


@pytest.mark.parametrize("op", Op, ids=lambda op: op.name.lower())
def test_all_dtypes_in_one_compiled_call(hvd, op):
    reductions = [reduction for reduction in REDUCTIONS if reduction.op is op]
    step = jax.jit(lambda arrays: grouped_allreduce(arrays, name=f"dtypes.{op}", op=int(op)))
    for repeat in REPEATS:  # one program, other values
        everyone = [inputs(reduction, (13 + place,), repeat) for place, reduction in enumerate(reductions)]
        check_all(step([arrays[RANK] for arrays in everyone]), everyone, reductions)


def test_shapes_and_factors_compiled_and_not(hvd):
    def reduce(arrays, name):
        return grouped_allreduce(arrays, name=name, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)

    for repeat in REPEATS:
        everyone = [inputs(FLOAT_SUM, shape, repeat) for shape in SHAPES]
        mine = [arrays[RANK] for arrays in everyone]
        kept = [jnp.asarray(array) for array in mine]
        for outputs in (reduce(kept, "outside"), jax.jit(reduce, static_argnums=1)(kept, "inside")):
            check_all(outputs, everyone, [FLOAT_SUM] * len(SHAPES), prescale=0.5, postscale=3.0)
        assert all((now == before).all() for now, before in zip(kept, mine, strict=True)), "arguments have changed"
    assert grouped_allreduce([], name="nothing") == []


def test_a_codec_and_a_compression_compiled_and_not(hvd):
    def reduce(array, name, compression):
        return grouped_allreduce([array], name=name, op=hvd.Sum, compression=compression)[0]

    everyone = [np.sin(np.arange(100, dtype=np.float32) * (rank + 1)) for rank in range(SIZE)]
    mine, codec = jnp.asarray(everyone[RANK]), hvd.Compression.fp8(64, "ranks")
    for output in (reduce(mine, "outside", codec), jax.jit(reduce, static_argnums=(1, 2))(mine, "inside", codec)):
        assert np.asarray(output).tobytes() == reduced(everyone, FP8).tobytes()
    narrow = reduce(mine, "narrow", hvd.Compression.fp16)
    assert narrow.dtype == np.float32
    np.testing.assert_allclose(narrow, sum(everyone), atol=2e-3)


@pytest.mark.parametrize("alone", [False, True])
def test_groups_of_several_kinds_in_one_call(hvd, alone):
    everyone = [inputs(FLOAT_SUM, (size,)) for size in (3, 1031)]
    values = [distinct(rank, (5,), "int16") for rank in range(SIZE)]

    @jax.jit
    def step(arrays):
        kinds = [(array.dtype.name, array.shape) for array in arrays]
        groups = [
            TensorGroup(Kind.ALLREDUCE, "sums", kinds[:2], names=["a weight", "b"]),
            TensorGroup(Kind.BROADCAST, "values", kinds[2:], root=SIZE - 1),
        ]
        return call(groups, arrays, alone=alone)

    for _ in REPEATS:
        *sums, value = step([arrays[RANK] for arrays in (*everyone, values)])
        check_all(sums, everyone, [FLOAT_SUM] * 2)
        assert np.array_equal(value, values[-1])


def test_broadcast(hvd):
    for root in range(SIZE):
        everyone = [[distinct(rank, shape, dtype) for shape in SHAPES] for rank in range(SIZE) for dtype in ("bool",)]
        step = jax.jit(lambda arrays, root=root: grouped_broadcast(arrays, root, name="start"))
        for outputs in (step(everyone[RANK]), grouped_broadcast(everyone[RANK], np.int64(root), name="start")):
            assert all(np.array_equal(out, sent) for out, sent in zip(outputs, everyone[root], strict=True))


@pytest.mark.skipif(not ffi.has_futures(), reason="this jaxlib has no futures, and XLA waits in each call")
def test_many_calls_of_a_program_in_no_order(hvd):
    """XLA runs them as it likes, differently on each rank, and has fewer threads than there are calls."""

    @jax.jit
    def step(arrays):
        sums = [grouped_allreduce([jnp.sin(array)], name=f"call{place}", op=hvd.Max) for place, array in enumerate(arrays)]
        return [jnp.cos(array) for (array,) in sums]

    arrays = [jnp.full(200_000, 0.1 * RANK + 0.001 * place) for place in range(24)]
    for _ in REPEATS:
        for place, output in enumerate(step(arrays)):
            assert np.allclose(output, np.cos(np.sin(0.1 * (SIZE - 1) + 0.001 * place)))


def test_in_loops(hvd):
    """A gradient that is accumulated over a scan and then averaged, and a collective that runs in every iteration."""

    @jax.jit
    def train(weight, batches):
        def accumulate(total, batch):
            return total + jax.grad(lambda w: jnp.sum((w * batch) ** 2))(weight), None

        total, _ = jax.lax.scan(accumulate, jnp.zeros_like(weight), batches)
        (mean,) = grouped_allreduce([total], name="accumulated")
        return jax.lax.fori_loop(0, 3, lambda _, x: grouped_allreduce([x + RANK], name="iterated", op=hvd.Sum)[0], mean)

    weight = jnp.arange(4.0)
    batches = jnp.arange(8.0).reshape(2, 4) + RANK
    gradients = [sum(2 * weight * (np.arange(8.0).reshape(2, 4)[i] + rank) ** 2 for i in range(2)) for rank in range(SIZE)]
    expected = np.mean(gradients, axis=0)
    for _ in range(3):
        expected = SIZE * expected + sum(range(SIZE))
    for _ in REPEATS:
        assert np.allclose(train(weight, batches), expected)


def test_one_array_twice_and_a_constant(hvd):
    @jax.jit
    def step(array):
        return grouped_allreduce([array, array, jnp.arange(3.0), array[0]], name="twice", op=hvd.Sum)

    for _ in REPEATS:
        first, second, constant, element = step(jnp.arange(3.0) + RANK)
        wanted = SIZE * np.arange(3.0) + sum(range(SIZE))
        assert np.array_equal(first, wanted)
        assert np.array_equal(second, wanted)
        assert np.array_equal(constant, SIZE * np.arange(3.0))
        assert element == wanted[0]


@pytest.mark.skipif("has_side_effect" not in ffi.parameters(), reason="this JAX's FFI calls have no side effects")
def test_a_result_that_one_rank_does_not_use(hvd):
    total = jax.jit(lambda x: (grouped_allreduce([x], name="unused", op=hvd.Sum)[0], x)[ODD])(jnp.ones(3) + RANK)
    assert np.array_equal(total, np.full(3, SIZE if ODD else SIZE + sum(range(SIZE))))


@pytest.mark.parametrize("alone", [False, True])
def test_a_mismatch_is_typed_and_the_engine_goes_on(hvd, alone):
    def reduce(array):
        return call([TensorGroup(Kind.ALLREDUCE, "t", [(array.dtype.name, array.shape)])], [array], alone=alone)

    for _ in REPEATS:
        with pytest.raises(hvd.MismatchError, match="allreduce of 't_1of1' in process set 0: shape differs") as outside:
            reduce(jnp.ones(3 + ODD))
        with pytest.raises((RuntimeError, ValueError), match=r"FAILED_PRECONDITION|Generated function failed") as inside:
            jax.block_until_ready(jax.jit(reduce)(jnp.ones(3 + ODD)))
        assert type(failure_in(inside.value)) is hvd.MismatchError
        assert str(failure_in(inside.value)) == str(outside.value)
        on_all_ranks(str(outside.value))
        assert reduce(jnp.ones(2))[0].tolist() == [SIZE] * 2


def test_process_sets(hvd):
    members = [0, SIZE - 1] if SIZE > 2 else [1]
    subset = hvd.add_process_set(members)
    if subset.included():
        step = jax.jit(lambda x: grouped_allreduce([x], name="t", op=hvd.Sum, process_set=subset)[0])
        for _ in REPEATS:
            assert step(jnp.full(3, RANK + 1.0)).tolist() == [sum(members) + len(members)] * 3
    else:
        with pytest.raises(hvd.InvalidArgumentError, match="is not a member"):
            grouped_allreduce([jnp.ones(3)], name="t", process_set=subset)
    hvd.remove_process_set(subset)


def test_a_rank_leaves_after_the_steps_that_it_has_started(hvd):
    def start(steps, **options):
        @jax.jit
        def step(x):
            (x,) = grouped_allreduce([jnp.sin(x @ x)], name="step", op=hvd.Sum, **options)
            (x,) = grouped_allreduce([jnp.sin(x)], name="again", op=hvd.Sum, **options)
            return x

        x = jnp.ones((200, 200))
        for _ in range(steps):
            x = step(x)
        return x

    mine = start(5 + 5 * ODD)
    assert hvd.join() == SIZE - 1
    assert mine.shape == np.asarray(mine).shape
    subset = hvd.add_process_set([SIZE - 1])
    mine = start(5, process_set=subset) if ODD else jnp.ones(1)
    hvd.remove_process_set(subset)
    assert mine.shape == np.asarray(mine).shape


def test_a_waiting_call_leaves_python_to_others(hvd):
    """Rank 0 takes part only when a thread of the last rank, which waits for it, has run Python code."""
    step = jax.jit(lambda x: grouped_allreduce([x], name="wait", op=hvd.Sum)[0])
    if ODD:
        before = RUNTIME.engine.counters()["submitted"]

        def go():
            assert eventually(lambda: RUNTIME.engine.counters()["submitted"] > before)
            WORLD.send("go", 0)

        thread = threading.Thread(target=go)
        thread.start()
    if RANK == 0:
        WORLD.recv(source=SIZE - 1)
    assert step(jnp.ones(2)).tolist() == [SIZE] * 2
    if ODD:
        thread.join()


def test_a_compiled_program_without_an_engine(ended):
    ended.init()
    step = jax.jit(lambda x: grouped_allreduce([x], name="t", op=ended.Sum)[0])
    assert step(jnp.ones(2)).tolist() == [SIZE] * 2
    ended.shutdown()
    with pytest.raises((RuntimeError, ValueError), match="has not been initialized") as error:
        jax.block_until_ready(step(jnp.ones(2)))
    assert type(failure_in(error.value)) is ended.NotInitializedError
    ended.init()
    assert step(jnp.ones(2)).tolist() == [SIZE] * 2


def test_what_is_refused(hvd, monkeypatch):
    with pytest.raises(hvd.InvalidArgumentError, match="on one line"):
        grouped_allreduce([jnp.ones(2)], name="two\nlines")
    with pytest.raises(hvd.InvalidArgumentError, match="float8_e4m3fn cannot be sent"):
        jax.jit(lambda x: grouped_allreduce([x], name="t"))(jnp.ones(2, jnp.float8_e4m3fn))
    with pytest.raises(hvd.InvalidArgumentError, match="2 tensors, but 1 names"):
        call([TensorGroup(Kind.ALLREDUCE, "t", [("float32", ())] * 2, names=["a"])], [jnp.ones(()), jnp.ones(())])
    half = TensorGroup(Kind.ALLREDUCE, "t", [("float16", (2,))])
    with pytest.raises(hvd.InvalidArgumentError, match=r"array 0 is float32 \[2\], but its group says float16 \[2\]"):
        call([half], [jnp.ones(2, jnp.float32)])
    with pytest.raises(hvd.InvalidArgumentError, match="have 1 tensors, but there are 2 arrays"):
        call([half], [jnp.ones(2, jnp.float16)] * 2)
    for root in (SIZE, None):
        with pytest.raises(hvd.InvalidArgumentError, match=f"broadcast of 'b' in .* invalid root rank {root} for provided"):
            jax.jit(lambda x, root=root: grouped_broadcast([x], root, name="b"))(jnp.ones(2))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(hvd.UnsupportedError, match="JAX_PLATFORMS=cpu"):
        grouped_allreduce([jnp.ones(2)], name="t")


def test_arrays_outside_of_programs_that_numpy_has_no_dtype_for(hvd):
    """bfloat16 is reduced; float8 is moved."""
    total = hvd.allreduce(jnp.full((3,), RANK + 1, jnp.bfloat16), op=hvd.Sum, name="bfloat16")
    assert total.dtype == jnp.bfloat16
    assert total.tolist() == [SIZE * (SIZE + 1) / 2] * 3
    moved = hvd.broadcast(jnp.full((3,), RANK + 1, jnp.float8_e4m3fn), SIZE - 1, name="float8")
    assert moved.dtype == jnp.float8_e4m3fn
    assert moved.tolist() == [SIZE] * 3


def test_a_traced_array_is_refused_outside_of_this_door(hvd):
    for function in (hvd.allreduce, hvd.allgather):
        with pytest.raises(NotImplementedError, match=r"JAX is tracing the function: call hvdlite outside of jax\.jit"):
            jax.jit(function)(jnp.ones(3))
