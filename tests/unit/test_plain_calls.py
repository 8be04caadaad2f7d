"""Calls with tensors that native code describes: to a result, or to a work in flight, and what is left to the general way."""

import copy
import math
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime_CAPI  # a capsule of something else
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.dlpack import needs_exchange
from support.limits import SANITIZED, eventually, interrupted
from support.plain_calls import WORLD_OF_TWO, Started, broadcast, misaligned, new_shape, read_only, reduce, started
from support.thread_ranks import AVERAGE, SUM, engines, in_threads, run_ranks

from hvdlite.backends import plain_of
from hvdlite.dtypes import DType, code_of_name, dlpack_codes, numpy_dtype
from hvdlite.errors import InvalidArgumentError, MismatchError, PeerLostError
from hvdlite.requests import Kind

torch = pytest.importorskip("torch")

DLPACK_CODES = dlpack_codes(DType)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (1, 4, 1), (70,)], ids=str)
@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype != DType.BFLOAT16], ids=lambda dtype: dtype.name)
def test_arrays_that_are_dense_are_used_as_they_are(dtype, shape):
    def body(rank):
        source = np.full(shape, rank.rank + 1).astype(numpy_dtype(dtype))
        output = reduce(rank.engine, "apart", source, in_place=False)
        assert output is not source
        assert (source == np.full(shape, rank.rank + 1).astype(source.dtype)).all()
        assert broadcast(rank.engine, None, source, root=1) is source
        return output, source

    expected = np.full(shape, 3).astype(numpy_dtype(dtype))  # True of a bool
    for output, source in run_ranks(2, body):
        assert output.shape == shape
        assert (output == expected).all()
        assert (source == np.full(shape, 2).astype(source.dtype)).all()


@needs_exchange
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (1, 4, 1), (70,)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8], ids=str)
def test_tensors_that_are_dense_are_used_as_they_are(dtype, shape):
    def body(rank):
        source = torch.full(shape, rank.rank + 1).to(dtype)
        output = reduce(rank.engine, "apart", source, in_place=False)
        assert output.dtype == dtype
        part = torch.full((3, *shape), rank.rank + 1).to(dtype)[1]  # begins inside its storage
        assert reduce(rank.engine, None, part) is part
        return output, part

    for output, part in run_ranks(2, body):
        assert output.shape == shape
        assert (output == torch.full(shape, 3).to(dtype)).all()
        assert (part == torch.full(shape, 3).to(dtype)).all()


@needs_exchange
def test_small_results_are_tensors_like_others():
    with engines(1) as (rank,):
        made = [reduce(rank.engine, "x", torch.arange(6.0).reshape(2, 3), in_place=False) for _ in range(2)]
    result, other = made  # outlive the engine
    assert type(result) is torch.Tensor
    assert result.is_contiguous()
    assert result.data_ptr() % 64 == other.data_ptr() % 64 == 0
    other.zero_()
    expected = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(pickle.loads(pickle.dumps(result)), expected)
    assert torch.equal(copy.deepcopy(result), expected)
    result.requires_grad_()
    (result**2).sum().backward()
    assert torch.equal(result.grad, 2 * expected)
    result = result.detach()
    row = result[1]
    assert torch.equal(torch.from_numpy(result.numpy()), expected)
    assert result.share_memory_().is_shared()
    assert torch.equal(result.resize_(3), expected[0])
    del result, made
    assert torch.equal(row, expected[1])
    with torch.inference_mode(), engines(1) as (rank,):
        assert torch.equal(reduce(rank.engine, "x", expected, in_place=False), expected)


@needs_exchange
def test_the_memory_of_small_results_is_given_back():
    source = torch.ones(50_000)
    with engines(1) as (rank,), ThreadPoolExecutor(1) as other_thread:

        def make(count):
            for _ in range(count):
                results = [reduce(rank.engine, "x", source, in_place=False)]
                other_thread.submit(results.clear).result()

        make(2000 if SANITIZED else 20)  # the address sanitizer keeps what is freed for a while, up to 256 MB
        before = resident_bytes()
        make(2000)  # four hundred megabytes
        assert resident_bytes() - before < 60 << 20


@needs_exchange
def test_of_an_axis_of_one_the_stride_does_not_matter():
    def body(rank):
        tensor = torch.full((3, 1), float(rank.rank)).as_strided((1, 3), (17, 1))
        assert reduce(rank.engine, "x", tensor, op=AVERAGE) is tensor
        return tensor

    assert all((tensor == 0.5).all() for tensor in run_ranks(2, body))


ARRAYS = {
    "transposed": lambda: np.ones((2, 3), np.float32).T,
    "every second": lambda: np.ones(6, np.float32)[::2],
    "backwards": lambda: np.ones(6, np.float32)[::-1],
    "misaligned": misaligned,
    "read-only": read_only,
}
TENSORS = {
    "transposed": lambda: torch.ones(2, 3).t(),
    "every second": lambda: torch.ones(6)[::2],
    "expanded": lambda: torch.ones(1).expand(3),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "meta": lambda: torch.ones(3, device="meta"),
    "subclass": lambda: torch.nn.Parameter(torch.ones(3)),
    "conjugated": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.ones(3, dtype=torch.complex64).conj().imag,
    "sparse": lambda: torch.eye(3).to_sparse(),
    "complex": lambda: torch.ones(3, dtype=torch.complex128),
    "of another dtype": lambda: torch.ones(3).to(torch.float8_e5m2),
}


@pytest.mark.parametrize("make", [*ARRAYS.values(), *TENSORS.values()], ids=[*(f"numpy {name}" for name in ARRAYS), *TENSORS])
def test_other_memory_is_left_alone(make):
    with engines(1) as (rank,):
        assert reduce(rank.engine, "x", make()) is None
        assert started(rank.engine, "x", make()) is None
        assert broadcast(rank.engine, "x", make(), 0) is None
        assert rank.engine.counters()["submitted"] == 0
        assert (reduce(rank.engine, "x", make(), in_place=False) is not None) == (make is read_only)  # which may be read


@pytest.mark.parametrize(
    "value",
    [np.ma.ones(3), np.float32(1), [1.0], np.ones(3, ">f4"), np.ones(3, object), memoryview(b"abc"), None],
    ids=["masked", "scalar", "list", "big endian", "objects", "memoryview", "None"],
)
def test_what_only_looks_like_an_array_is_left_to_the_general_way(value):
    with engines(1) as (rank,):
        assert reduce(rank.engine, "x", value, in_place=False) is None
        assert started(rank.engine, "x", value, in_place=False) is None
        assert rank.engine.counters()["submitted"] == 0


class Five(int):
    pass


UNUSUAL = {
    "average": {"average": True},
    "no text": {"name": 7},
    "no UTF-8": {"name": "\ud800"},
    "op too large": {"op": 6},
    "op negative": {"op": -1},
    "op beyond 32 bits": {"op": 1 << 40},
    "op of a bool": {"op": True},
    "op of a subclass": {"op": Five(1)},
    "integer factor": {"prescale": 2},
    "factor of NumPy": {"postscale": np.float32(2)},
    "factor that is none": {"prescale": "2"},
    "no process set": {"process_set": None},
    "not a member": {"process_set": SimpleNamespace(member_id=None, ranks=[1])},
}


@pytest.mark.parametrize("unusual", UNUSUAL.values(), ids=UNUSUAL)
def test_unusual_arguments_are_left_to_the_general_way(unusual):
    call = {"average": None, "name": "x", "op": SUM, "prescale": 1.0, "postscale": 1.0, "process_set": WORLD_OF_TWO, **unusual}
    with engines(1) as (rank,):
        rank.engine.connect(plain_of, Started)
        assert rank.engine.allreduce(np.ones(3, np.float32), *call.values(), True, True) is None
        assert rank.engine.allreduce(np.ones(3, np.float32), *call.values(), True, False) is None
        assert rank.engine.counters()["submitted"] == 0


@pytest.mark.parametrize("root", [2, -1, True, 1.0, None, np.int64(0)], ids=repr)
def test_unusual_roots_are_left_to_the_general_way(root):
    with engines(1) as (rank,):
        assert broadcast(rank.engine, "x", np.ones(3, np.float32), root) is None
        assert (
            broadcast(rank.engine, "x", np.ones(3, np.float32), 0, process_set=SimpleNamespace(member_id=0, ranks=None)) is None
        )
        assert rank.engine.counters()["submitted"] == 0


def test_without_an_op_it_is_an_average():
    def body(rank):
        return reduce(rank.engine, None, np.array([rank.rank + 1.0]), op=None)

    assert [float(result[0]) for result in run_ranks(2, body)] == [1.5, 1.5]


@pytest.mark.parametrize("make", [np.full, pytest.param(torch.full, marks=needs_exchange)], ids=["numpy", "torch"])
@pytest.mark.parametrize("rows", [0, 2, 50_000])
def test_results_of_the_engine_are_arrays_like_others(make, rows):
    def body(rank):
        source = make((2 * rows, 3), rank.rank + 1.0)
        gathered = new_shape(rank.engine, Kind.ALLGATHER, source)
        scattered = new_shape(rank.engine, Kind.REDUCESCATTER, source)
        assert type(gathered) is type(scattered) is type(source)
        assert gathered.dtype == scattered.dtype == source.dtype
        gathered[:1] += 0  # its memory can be written to
        return gathered, scattered

    for gathered, scattered in run_ranks(2, body):  # they outlive the engines
        assert tuple(gathered.shape) == (4 * rows, 3)
        assert (gathered[: 2 * rows] == 1).all()
        assert (gathered[2 * rows :] == 2).all()
        assert tuple(scattered.shape) == (rows, 3)
        assert (scattered == 3).all()


@pytest.mark.parametrize("make", [np.ones, pytest.param(torch.ones, marks=needs_exchange)], ids=["numpy", "torch"])
def test_the_memory_of_results_of_the_engine_is_given_back(make):
    source = make(50_000)
    with engines(1) as (rank,), ThreadPoolExecutor(1) as other_thread:
        for count in (2000 if SANITIZED else 20, 1000):  # the address sanitizer keeps what is freed for a while
            before = resident_bytes()
            for _ in range(count):
                results = [new_shape(rank.engine, Kind.ALLGATHER, source)]
                other_thread.submit(results.clear).result()
        assert resident_bytes() - before < 60 << 20  # of two or four hundred megabytes


@pytest.mark.parametrize("unusual", [np.ones(()), np.ones((2, 3)).T, [1.0]], ids=["scalar", "transposed", "list"])
def test_unusual_inputs_of_allgathers_are_left_to_the_general_way(unusual):
    with engines(1) as (rank,):
        assert new_shape(rank.engine, Kind.ALLGATHER, unusual) is None
        assert new_shape(rank.engine, Kind.REDUCESCATTER, np.ones(2), op=np.int64(SUM)) is None
        assert rank.engine.counters()["submitted"] == 0


def test_an_engine_that_was_told_of_no_types_leaves_all_to_the_general_way():
    with engines(1) as (rank,):
        assert rank.engine.allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True, True) is None
        assert rank.engine.allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True, False) is None


def test_an_output_of_another_size_is_refused():
    plain = plain_of(np.ones(1))._replace(new_like=lambda array: np.ones(4))
    with engines(1) as (rank,):
        rank.engine.connect(lambda value: plain, Started)
        assert rank.engine.allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, False, True) is None
        assert rank.engine.allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, False, False) is None
        assert rank.engine.counters()["submitted"] == 0


def test_errors_name_the_operation():
    def body(rank):
        array = np.ones(2 + rank.rank, np.float32)
        references = sys.getrefcount(array)
        with pytest.raises(MismatchError, match="allreduce of 'm'"):
            reduce(rank.engine, "m", array)
        with pytest.raises(InvalidArgumentError, match="process set 7"):
            reduce(rank.engine, "m", array, process_set=SimpleNamespace(member_id=7))
        assert sys.getrefcount(array) == references  # nothing is in use after such failures

    run_ranks(2, body)


def test_what_a_signal_leaves_in_flight_is_kept_until_it_has_ended():
    source, other = np.full(4, 1.0), np.full(4, 2.0)
    made = []

    def new_like(array):
        made.append(np.full_like(array, -1))
        return made[-1]

    plain = plain_of(source)._replace(new_like=new_like)
    with engines(2) as ranks:
        first = ranks[0].engine
        first.connect(lambda value: plain)
        interrupted(
            lambda: first.allreduce(source, None, "late", SUM, 1.0, 1.0, WORLD_OF_TWO, False, True),
            begun=lambda: first.counters()["submitted"] == 1,
        )
        (output,) = made
        assert first.dropped_in_flight == 1
        references = sys.getrefcount(output)
        assert reduce(ranks[1].engine, "late", other) is other

        def is_let_go():
            in_threads(ranks, lambda rank: rank.barrier())  # whoever submits lets go of what has ended
            return first.dropped_in_flight == 0

        assert eventually(is_let_go)
        assert sys.getrefcount(output) == references - 1
    assert (output == 3).all()
    assert (other == 3).all()
    assert (source == 1).all()


def test_the_memory_of_what_failed_with_the_job_is_kept_for_good():
    array = np.ones(2)
    references = sys.getrefcount(array)

    def body(rank):
        if rank.rank:
            assert eventually(lambda: ranks[0].engine.counters()["submitted"])
            rank.engine.publish_failure("raised: for the test")
            return
        for _ in range(2):  # under way, and refused
            with pytest.raises(PeerLostError):
                reduce(rank.engine, "never", array)

    with engines(2) as ranks:
        in_threads(ranks, body)
    assert sys.getrefcount(array) == references + 2  # as input and as output, of the one that was under way


@pytest.mark.parametrize("in_place", [True, False])
def test_a_broadcast_may_be_started(in_place):
    def body(rank):
        array = np.full(3, rank.rank + 1.0)
        work = broadcast(rank.engine, "b", array, 1, in_place, blocking=False)
        output = work._outputs(math.inf)
        assert (output is array) == in_place
        assert in_place or (array == rank.rank + 1).all()
        return output.tolist()

    assert run_ranks(2, body) == [[2.0] * 3] * 2


@needs_exchange
def test_a_tensor_that_requires_grad_is_written_and_gets_none():
    with engines(1) as (rank,):
        leaf = torch.ones(3, requires_grad=True)
        assert reduce(rank.engine, "x", leaf, prescale=2.0) is leaf
        assert (leaf == 2).all()
        assert leaf.is_leaf


def test_dlpack_codes_are_those_of_dlpack():
    expected = {"float32": (2, 4), "bfloat16": (4, 2), "uint8": (1, 1), "int64": (0, 8), "bool": (6, 1), "complex128": (5, 16)}
    for name, (kind, size) in expected.items():
        assert DLPACK_CODES[8 * kind + size.bit_length() - 1] == code_of_name(name)
    assert len(DType) == sum(code != 255 for code in DLPACK_CODES)


@needs_exchange
def test_the_write_is_counted():
    with engines(1) as (rank,):
        tensor = torch.ones(3)
        before = tensor._version
        assert reduce(rank.engine, "x", tensor, in_place=False) is not None
        assert tensor._version == before
        assert reduce(rank.engine, "x", tensor) is tensor
        assert tensor._version > before
        with torch.inference_mode():
            assert reduce(rank.engine, "x", torch.ones(3)) is not None  # has no such count


@needs_exchange
@pytest.mark.parametrize(
    "wrong",
    [{"exchange": datetime_CAPI}, {"exchange": "text"}, {"codes": "text"}, {"exchange": None, "dtypes": 3}, None],
    ids=["another capsule", "text for exchange", "text for codes", "a number for dtypes", "None"],
)
def test_what_describes_no_type_is_refused(wrong):
    plain = plain_of(torch.ones(1))
    with engines(1) as (rank,):
        rank.engine.connect(lambda value: (1, 2) if wrong is None else plain._replace(**wrong))
        with pytest.raises((ValueError, TypeError, SystemError)):
            rank.engine.allreduce(torch.ones(1), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True, True)
