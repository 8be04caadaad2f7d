"""Operations on GPU memory, with ranks as threads on fake GPUs: each collective, both ways from rank to rank."""

import numpy as np
import pytest
from support import fake_gpu, thread_ranks
from support.cases import ufunc_of
from support.fake_gpu import fake_gpus  # noqa: F401
from support.gpu_ranks import WIRE_BFLOAT16, WIRE_FLOAT16, gpu_engines, run_gpu_ranks
from support.limits import eventually
from support.rest import awaits_others
from support.thread_ranks import (
    ABSENT,
    ALLGATHER,
    ALLREDUCE,
    AVERAGE,
    BROADCAST,
    MAX,
    MIN,
    PRODUCT,
    REDUCESCATTER,
    SUM,
    in_threads,
)

from hvdlite.errors import InvalidArgumentError

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=str(fake_gpu.missing()))

ROUTES = ["nccl", "staged"]
COUNTERS = {"nccl": "nccl_ops", "staged": "staged_ops"}
SIZES = [1, 2, 3, 4]


@pytest.fixture(params=ROUTES)
def route(request):
    return request.param


@pytest.fixture(params=["memory", "messages"], autouse=True)
def ways(request, monkeypatch):
    """The ranks share memory, in which they agree and GPU tensors pass that go through host memory, or send messages."""
    monkeypatch.setitem(thread_ranks.COMMON, "shared_memory", "auto" if request.param == "memory" else "off")
    return request.param


def numbers(dtype, rank, count=37):
    """Small enough for any type and any sum of four ranks."""
    values = (np.arange(count) * 7 + rank * 3) % 11
    if dtype == "bool":
        return (values % 4 == rank % 4).astype(bool)
    if dtype.startswith("complex"):
        return (values + 1j * (values[::-1] - 5)).astype(dtype)
    return (values - (0 if dtype.startswith("u") else 5)).astype(dtype)


def expected(inputs, op, dtype):
    stacked = np.stack(inputs)
    if dtype == "bool":
        return stacked.any(0) if op in (SUM, MAX) else stacked.all(0)
    if op == AVERAGE:
        total = stacked.astype(complex if dtype.startswith("complex") else np.float64).sum(0) / len(inputs)
        return total.astype(dtype) if np.dtype(dtype).kind in "fc" else np.trunc(total).astype(dtype)
    return ufunc_of(op).reduce(stacked, axis=0, dtype=dtype)


DTYPES = [
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "bool", "complex64", "complex128"),
]


def cases():
    for dtype in DTYPES:
        ops = [SUM, AVERAGE] if dtype.startswith("complex") else [SUM, AVERAGE, MIN, MAX, PRODUCT]
        yield from ((dtype, op) for op in ops if (dtype, op) != ("bool", AVERAGE))


@pytest.mark.parametrize("size", SIZES)
def test_allreduce_of_every_dtype_and_op(fake_gpus, route, size):  # noqa: F811
    def body(rank):
        for dtype, op in cases():
            inputs = [numbers(dtype, index) for index in range(size)]
            result = rank.allreduce(f"{dtype}.{op}", inputs[rank.rank], op=op, in_place=op == SUM)
            wanted = expected(inputs, op, dtype)
            if np.dtype(dtype).kind in "fc":
                np.testing.assert_allclose(result, wanted, rtol=1e-3 if dtype == "float16" else 1e-6, err_msg=f"{dtype} {op}")
            else:
                np.testing.assert_array_equal(result, wanted, err_msg=f"{dtype} {op}")
        counters = rank.counters()
        assert counters["nccl_ops"] + counters["staged_ops"] == len(list(cases()))
        if route == "staged":
            assert counters["nccl_ops"] == 0
        else:  # NCCL has no 16-bit integers
            assert counters["staged_ops"] == len([dtype for dtype, _ in cases() if dtype.endswith("int16")])

    run_gpu_ranks(fake_gpus, size, body, {"gpu_route": route})


@pytest.mark.parametrize("op", [SUM, AVERAGE])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "int64", "float64", "complex64"])
def test_scaled_allreduce_rounds_as_on_the_host(fake_gpus, route, dtype, op):  # noqa: F811
    def body(rank):
        values = numbers(dtype, rank.rank, 1001)
        options = {"op": op, "prescale": 0.5, "postscale": 3.0}
        on_gpu = rank.allreduce("gpu", values, **options)
        on_host = rank.host.allreduce("host", values, **options)
        np.testing.assert_allclose(on_gpu, on_host, rtol=2e-3 if dtype == "float16" else 1e-6)

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": route})


def test_the_mean_of_large_float16_values_is_finite(fake_gpus, route):  # noqa: F811
    """Their sum is not."""

    def body(rank):
        values = np.full(100, 60000, np.float16)
        for prescale in (1.0, 0.5):  # as it is, and through the fusion buffer
            result = rank.allreduce(f"x{prescale}", values, op=AVERAGE, prescale=prescale)
            np.testing.assert_allclose(result, values * np.float16(prescale), rtol=1e-3)

    run_gpu_ranks(fake_gpus, 4, body, {"gpu_route": route})


@pytest.mark.parametrize("flag", [WIRE_FLOAT16, WIRE_BFLOAT16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_narrower_floats_on_the_wire(fake_gpus, route, dtype, flag):  # noqa: F811
    def body(rank):
        values = (np.linspace(1, 2, 500) * (rank.rank + 1)).astype(dtype)
        result = rank.allreduce("x", values, op=AVERAGE, flags=flag)
        wanted = (np.linspace(1, 2, 500) * 2).astype(dtype)
        np.testing.assert_allclose(result, wanted, rtol=2e-2)
        assert (result != wanted).any(), "nothing was rounded: did it cross as it is?"

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": route})


def test_float32_sums_of_16_bit_floats(fake_gpus):  # noqa: F811
    """Rounded once, as on the host, and not after each addition."""

    def body(rank):
        values = np.full(64, 1.0 if rank.rank == 0 else 2.0**-11, np.float16)  # lost one by one in float16
        return rank.allreduce("x", values, op=SUM)

    wide = run_gpu_ranks(fake_gpus, 4, body, {"gpu_route": "nccl", "nccl_float32_sums": True})
    assert (wide[0] == np.float16(1 + 3 * 2.0**-11)).all()


@pytest.mark.parametrize("size", SIZES)
def test_groups_are_fused(fake_gpus, route, size):  # noqa: F811
    counts = [1, 33, 0, 1000, 7]

    def body(rank):
        for step in range(3):
            inputs = [numbers("float32", 10 * rank.rank + index + step, count) for index, count in enumerate(counts)]
            arrays = [rank.array(values) for values in inputs]
            outputs = [rank.empty_like(array) for array in arrays]
            handles = [
                rank.start(ALLREDUCE, f"t{i}", array, output, group="g", group_size=len(counts), group_index=i)
                for i, (array, output) in enumerate(zip(arrays, outputs, strict=True))
            ]
            thread_ranks.outcomes_of(rank.engine, handles, streams=(rank.stream.handle,))
            for i, (count, output) in enumerate(zip(counts, outputs, strict=True)):
                wanted = sum(numbers("float32", 10 * peer + i + step, count) for peer in range(size))
                np.testing.assert_array_equal(output.numpy(), wanted)
        assert rank.counters()[COUNTERS[route]] == 3

    run_gpu_ranks(fake_gpus, size, body, {"gpu_route": route})


@pytest.mark.parametrize("size", SIZES)
def test_broadcast(fake_gpus, route, size):  # noqa: F811
    def body(rank):
        for root in range(size):
            for in_place in (False, True):
                result = rank.broadcast(f"b{root}.{in_place}", numbers("int16", rank.rank), root, in_place)
                np.testing.assert_array_equal(result, numbers("int16", root))

    run_gpu_ranks(fake_gpus, size, body, {"gpu_route": route})


@pytest.mark.parametrize("size", SIZES)
def test_allgather_of_uneven_rows(fake_gpus, route, size):  # noqa: F811
    def part(index, rows):
        return np.full((rows, 3), index + 1, np.float32)

    def body(rank):
        for number, rows in enumerate([[2] * 4, [3, 0, 1, 2], [0, 0, 0, 0]]):
            result = rank.allgather(f"g{number}", part(rank.rank, rows[rank.rank]))
            np.testing.assert_array_equal(result, np.concatenate([part(i, rows[i]) for i in range(size)]))

    run_gpu_ranks(fake_gpus, size, body, {"gpu_route": route})


@pytest.mark.parametrize("size", SIZES)
def test_alltoall(fake_gpus, route, size):  # noqa: F811
    def splits(sender):
        return [(sender + receiver) % 3 for receiver in range(size)]

    def rows(sender):
        return np.arange(sum(splits(sender)) * 2, dtype=np.int64).reshape(-1, 2) + 100 * sender

    def to(sender, receiver):
        start = sum(splits(sender)[:receiver])
        return rows(sender)[start : start + splits(sender)[receiver]]

    def body(rank):
        result = rank.alltoall("a", rows(rank.rank), splits=splits(rank.rank))
        np.testing.assert_array_equal(result, np.concatenate([to(sender, rank.rank) for sender in range(size)]))

    run_gpu_ranks(fake_gpus, size, body, {"gpu_route": route})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_reducescatter(fake_gpus, route, size, dtype):  # noqa: F811
    def body(rank):
        for number, (rows, op, scale) in enumerate(
            [(4 * size, SUM, 1.0), (4 * size + 1, AVERAGE, 1.0), (size, SUM, 2.0), (1, SUM, 1.0)]
        ):
            inputs = [numbers(dtype, i, rows * 2).reshape(rows, 2) for i in range(size)]
            whole = expected(inputs, op, dtype) * np.dtype(dtype).type(scale)
            result = rank.reducescatter(f"r{number}", inputs[rank.rank], op=op, postscale=scale)
            dealt = np.array_split(whole, size)[rank.rank]
            np.testing.assert_allclose(result, dealt, rtol=1e-3, atol=1e-6)

    run_gpu_ranks(fake_gpus, size, body, {"gpu_route": route})


def test_absent_values(fake_gpus, route):  # noqa: F811
    def body(rank):
        for op in (SUM, AVERAGE, MIN, PRODUCT):
            for step in range(2):
                array = rank.array(np.full(5, rank.rank + 2.0, np.float32))
                flags = ABSENT if rank.rank == step else 0
                result = rank.wait(rank.start(ALLREDUCE, f"a{op}.{step}", array, array, op=op, flags=flags))
                assert result.contributors == 2
                given = [index + 2.0 for index in range(3) if index != step]
                wanted = {SUM: sum(given), AVERAGE: sum(given) / 3, MIN: min(given), PRODUCT: given[0] * given[1]}[op]
                np.testing.assert_allclose(array.numpy(), wanted, rtol=1e-6)

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": route})


def test_a_value_that_nobody_has(fake_gpus, route):  # noqa: F811
    def body(rank):
        array = rank.array(np.full(5, 7, np.float32))
        assert rank.wait(rank.start(ALLREDUCE, "x", array, array, flags=ABSENT)).contributors == 0
        np.testing.assert_array_equal(array.numpy(), 7)

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})


def test_joined_ranks_take_part(fake_gpus, route):  # noqa: F811
    """Also one that has never had a tensor on a GPU: it makes the link with the others."""

    joined = []

    def body(rank):
        if rank.rank == 1:
            joined.append((rank.engine, rank.engine.counters()))
            assert rank.host.join() == 2
            return
        np.testing.assert_array_equal(rank.allreduce("x", np.full(4, rank.rank + 1.0, np.float32)), 4)
        np.testing.assert_array_equal(rank.allreduce("m", np.full(4, rank.rank, np.int64), op=MIN), 0)
        np.testing.assert_array_equal(rank.broadcast("b", np.full(4, rank.rank, np.int8), root=2), 2)
        np.testing.assert_array_equal(rank.allgather("g", np.full(2, rank.rank, np.int8)), [0, 0, 2, 2])
        result = rank.reducescatter("r", np.arange(6, dtype=np.float32))
        np.testing.assert_array_equal(result, np.arange(6)[2 * rank.rank : 2 * rank.rank + 2] * 2)
        rows = np.arange(6) + 10 * rank.rank  # two rows go to each rank, also to the joined one
        mine = np.arange(6)[2 * rank.rank : 2 * rank.rank + 2]
        np.testing.assert_array_equal(rank.alltoall("t", rows, splits=[2, 2, 2]), [*mine, *mine + 20])
        if rank.rank == 2:  # it joins last
            assert eventually(lambda: len(joined) == 2 and all(awaits_others(*other) for other in joined))
        else:
            joined.append((rank.engine, rank.engine.counters()))
        assert rank.host.join() == 2

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": route})


def test_a_joined_rank_may_ask_not_to_be_counted(fake_gpus, route):  # noqa: F811
    def body(rank):
        if rank.rank != 1:
            np.testing.assert_array_equal(rank.allreduce("x", np.full(4, rank.rank + 1.0, np.float32), op=AVERAGE), 2)
        rank.host.join(root=1)  # join(average="contributing")

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": route})


def test_overlapping_process_sets(fake_gpus, route):  # noqa: F811
    """Each has its own link, and ranks come to them in different orders."""

    def body(rank):
        sets = {0: [0, 1, 2], **{rank.host.add_process_set(ranks): ranks for ranks in ([0, 1], [1, 2], [0, 2])}}
        mine = [number for number, ranks in sets.items() if rank.rank in ranks]
        for step in range(5):
            order = mine[step % len(mine) :] + mine[: step % len(mine)]
            if rank.rank == 1:
                order.reverse()
            arrays = {number: rank.array(np.full(50, rank.rank + number, np.float32)) for number in order}
            handles = [
                rank.start(ALLREDUCE, f"x{step}", arrays[number], arrays[number], process_set=number) for number in order
            ]
            thread_ranks.outcomes_of(rank.engine, handles, streams=(rank.stream.handle,))
            for number, array in arrays.items():
                np.testing.assert_array_equal(array.numpy(), sum(index + number for index in sets[number]))
        rank.host.barrier("before")
        for number in list(sets)[1:]:
            rank.host.remove_process_set(number)
        number = rank.host.add_process_set([0, 1])  # an id that had a link before
        if rank.rank < 2:
            np.testing.assert_array_equal(rank.allreduce("again", np.ones(3, np.float32), process_set=number), 2)

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": route})


def test_prepared_groups(fake_gpus, route):  # noqa: F811
    def body(rank):
        arrays = [rank.array(np.full(count, rank.rank + 1.0, np.float32)) for count in (3, 100, 17)]
        keys = ("kind", "name", "dtype", "shape", "input_ptr", "output_ptr", "op")
        group = rank.engine.prepare(
            [
                (
                    *[{**rank.request(ALLREDUCE, f"p{i}", array, array), "op": SUM}[key] for key in keys],
                    *(0, 0, 1.0, 1.0, "g", 3, i, (), rank.device),
                )
                for i, array in enumerate(arrays)
            ]
        )
        total = 6.0
        for step in range(3):
            handle = rank.engine.submit_prepared(group, [array.ptr for array in arrays], streams=(rank.stream.handle,))
            assert thread_ranks.outcomes_of(rank.engine, [handle], streams=(rank.stream.handle,)) == [3, 3, 3]
            for array in arrays:
                np.testing.assert_array_equal(array.numpy(), total)
            total *= 3
            assert step < 2 or rank.counters()[COUNTERS[route]] == 3
        host = np.ones(3, np.float32)
        with pytest.raises(InvalidArgumentError, match=r"is not on GPU \d but in host memory"):
            rank.engine.submit_prepared(group, [host.ctypes.data] * 3, streams=(rank.stream.handle,))

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": route})


def test_tensors_on_two_gpus_of_a_rank(fake_gpus, route):  # noqa: F811
    """The set's GPU is that of the first operation; tensors on another are copied, and their streams are of that other."""

    def body(rank):
        other = rank.device + 2
        rank.allreduce("first", np.ones(3, np.float32))
        for in_place in (True, False):
            array = rank.array(np.full(9, rank.rank + 1.0, np.float32), other)
            output = array if in_place else rank.empty_like(array)
            rank.wait(rank.start(ALLREDUCE, f"x{in_place}", array, output), array.stream)
            np.testing.assert_array_equal(output.numpy(), 3)
        array = rank.array(np.full(2, rank.rank, np.int32), other)
        result = rank.wait(rank.start(ALLGATHER, "g", array), array.stream)
        np.testing.assert_array_equal(rank.take(result, array), [0, 0, 1, 1])
        for root in (0, 1):
            array = rank.array(np.full(2, rank.rank, np.int32), other)
            rank.wait(rank.start(BROADCAST, f"b{root}", array, array, root=root), array.stream)
            np.testing.assert_array_equal(array.numpy(), root)
        array = rank.array(np.arange(4, dtype=np.float64), other)
        result = rank.wait(rank.start(REDUCESCATTER, "r", array), array.stream)
        np.testing.assert_array_equal(rank.take(result, array), np.arange(4)[2 * rank.rank :][:2] * 2)

    fake_gpus.set(gpus=4)
    with gpu_engines(fake_gpus, 2, {"gpu_route": route}, devices=[0, 1]) as ranks:
        fake_gpus.set(gpus=4)
        in_threads(ranks, body, 60)


def test_poll_says_when_it_is_handed_over(fake_gpus, route):  # noqa: F811

    def body(rank):
        array = rank.array(np.ones(3, np.float32))
        handle = rank.start(ALLREDUCE, "x", array, array)
        while not handle.poll():
            pass
        rank.wait(handle)
        np.testing.assert_array_equal(array.numpy(), 2)

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})
