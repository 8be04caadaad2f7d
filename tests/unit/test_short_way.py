"""The short way to a result, or to an operation in flight: which calls take it, and what it leaves to the general way."""

import copy
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime_CAPI  # a capsule of something else
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.dlpack import needs_exchange
from support.limits import SANITIZED, interrupted
from support.short_way import WORLD_OF_TWO, Started, broadcast, kept_nothing, misaligned, read_only, reduce, start
from support.thread_ranks import AVERAGE, SUM, engines, in_threads, run_ranks

from hvdlite.backends import plain_of
from hvdlite.dtypes import DType, code_of_name, dlpack_codes, numpy_dtype
from hvdlite.errors import ErrorCode, InvalidArgumentError, MismatchError

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
        assert start(rank.engine, "x", make()) is None
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
        assert start(rank.engine, "x", value, in_place=False) is None
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
        rank.engine.connect(plain_of, kept_nothing, Started)
        assert rank.engine.allreduce_now(np.ones(3, np.float32), *call.values(), True) is None
        assert rank.engine.start_allreduce(np.ones(3, np.float32), *call.values(), True) is None
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


def test_an_engine_that_was_told_of_no_types_leaves_all_to_the_general_way():
    with engines(1) as (rank,):
        assert rank.engine.allreduce_now(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True) is None
        assert rank.engine.start_allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True) is None


def test_an_output_of_another_size_is_refused():
    plain = plain_of(np.ones(1))._replace(new_like=lambda array: np.ones(4))
    with engines(1) as (rank,):
        rank.engine.connect(lambda value: plain, kept_nothing, Started)
        assert rank.engine.allreduce_now(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, False) is None
        assert rank.engine.start_allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, False) is None
        assert rank.engine.counters()["submitted"] == 0


def test_errors_name_the_operation():
    def body(rank):
        kept = []
        array = np.ones(2 + rank.rank, np.float32)
        with pytest.raises(MismatchError, match="allreduce of 'm'"):
            reduce(rank.engine, "m", array, keep=lambda *what: kept.append(what))
        (((source, output), handle, code),) = kept
        assert source is output is array
        assert (handle, code) == (0, ErrorCode.MISMATCH)
        with pytest.raises(InvalidArgumentError, match="process set 7"):
            reduce(rank.engine, "m", array, process_set=SimpleNamespace(member_id=7))

    run_ranks(2, body)


def test_what_a_signal_leaves_in_flight_is_handed_over():
    arrays = [np.full(4, rank + 1.0) for rank in range(2)]
    kept = []
    with engines(2) as ranks:
        first = ranks[0].engine
        interrupted(
            lambda: reduce(first, "late", arrays[0], in_place=False, keep=lambda *what: kept.append(what)),
            begun=lambda: first.counters()["submitted"] == 1,
        )
        (((source, output), handle, code),) = kept
        assert source is arrays[0]
        assert output is not source
        assert code == 0
        assert not first.poll(handle)
        in_threads(
            ranks,
            lambda rank: reduce(rank.engine, "late", arrays[1]) if rank.rank else rank.engine.wait(handle),
        )
    assert (output == 3).all()
    assert (arrays[1] == 3).all()
    assert (arrays[0] == 1).all()


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
        rank.engine.connect(lambda value: (1, 2) if wrong is None else plain._replace(**wrong), kept_nothing)
        with pytest.raises((ValueError, TypeError, SystemError)):
            rank.engine.allreduce_now(torch.ones(1), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True)
