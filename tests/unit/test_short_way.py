"""The short way to a result, or to an operation in flight: which calls take it, and what it leaves to the general way."""

import copy
import math
import os
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime_CAPI  # a capsule of something else
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from support.dlpack import needs_exchange
from support.limits import SANITIZED, interrupted
from support.thread_ranks import AVERAGE, SUM, engines, in_threads, run_ranks

from hvdlite._engine import HandleState
from hvdlite.backends import plain_of
from hvdlite.dtypes import DType, code_of_name, dlpack_codes, numpy_dtype
from hvdlite.errors import ErrorCode, InvalidArgumentError, MismatchError
from hvdlite.requests import member_names

torch = pytest.importorskip("torch")

DLPACK_CODES = dlpack_codes(DType)
WORLD_OF_TWO = SimpleNamespace(member_id=0, ranks=[0, 1])


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kept_nothing(memory, handle, code):
    raise AssertionError("nothing is left in flight")


class Started(HandleState):
    """A handle that only notes that it was let go with its operation in flight."""

    __slots__ = ("__weakref__",)
    left: ClassVar[list[int]] = []

    def _leave(self):
        self.left.extend(self._numbers)


def reduce(engine, name, tensor, in_place=True, keep=kept_nothing, op=SUM, prescale=1.0, process_set=WORLD_OF_TWO):
    """The result of the short way; None if the call has to go the general way."""
    engine.connect(plain_of, keep)
    return engine.allreduce_now(tensor, None, name, op, prescale, 1.0, process_set, in_place)


def started(engine, name, tensor, in_place=True, op=SUM, process_set=WORLD_OF_TWO):
    """The handle of the short way; None if the call has to go the general way."""
    engine.connect(plain_of, kept_nothing, Started)
    return engine.start_allreduce(tensor, None, name, op, 1.0, 1.0, process_set, in_place)


def start(engine, name, tensor, in_place=True, op=SUM, process_set=WORLD_OF_TWO):
    """The operation's number and its output; None if the call has to go the general way."""
    handle = started(engine, name, tensor, in_place, op, process_set)
    return None if handle is None else (*handle._numbers, handle._finish[0](None))


def started_group(engine, name, tensors, in_place=True, op=SUM):
    """The handle of a group; None if the call has to go the general way."""
    engine.connect(plain_of, kept_nothing, Started)
    return engine.start_allreduces(tensors, name, op, 1.0, 1.0, WORLD_OF_TWO, in_place, True)


def broadcast(engine, name, tensor, root, in_place=True, process_set=WORLD_OF_TWO):
    engine.connect(plain_of, kept_nothing)
    return engine.broadcast_now(tensor, root, name, process_set, in_place)


def misaligned():
    return np.frombuffer(bytearray(4 * 3 + 1), np.uint8)[1:].view(np.float32)


def read_only():
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return array


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
    "value", [np.ma.ones(3), np.float32(1), [1.0], np.ones(3, ">f4"), np.ones(3, object), memoryview(b"abc"), None], ids=repr
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


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_exchange)])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", ["x", None])
def test_an_operation_is_started_and_not_waited_for(kind, in_place, name):
    def make():
        arrays = [np.arange(5.0) + rank for rank in range(2)]
        return arrays if kind == "numpy" else [torch.from_numpy(array) for array in arrays]

    sources, before = make(), make()
    with engines(2) as ranks:
        started = [start(ranks[0].engine, name, sources[0], in_place, op=None)]
        assert not ranks[0].engine.poll(started[0][0])
        started.append(start(ranks[1].engine, name, sources[1], in_place, op=None))
        in_threads(ranks, lambda rank: rank.engine.wait(started[rank.rank][0]))
    for (_, output), source, old in zip(started, sources, before, strict=True):
        assert (output is source) == in_place
        assert type(output) is type(source)
        assert output.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
        assert in_place or (source == old).all()


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=needs_exchange)])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_started_operation_is_landed_once(kind, in_place):
    """The output comes when the operation has ended, and then the handle and the engine have let go of everything."""

    def body(rank):
        tensor = np.full(5, rank.rank + 1.0) if kind == "numpy" else torch.full((5,), rank.rank + 1.0)
        handle = started(rank.engine, "x", tensor, in_place)
        (number,) = handle._numbers
        assert handle._engine is rank.engine
        output = rank.engine.land(handle, math.inf)
        assert output.tolist() == [3.0] * 5
        assert (output is tensor) == in_place
        assert type(output) is type(tensor)
        with pytest.raises(InvalidArgumentError, match=str(number)):
            rank.engine.poll(number)
        assert rank.engine.land(handle, math.inf) is NotImplemented
        assert [finish(outcome) is output for finish, outcome in zip(handle._finish, handle._outcomes, strict=True)] == [True]
        handle._finish = None
        memory = weakref.ref(output)
        del tensor, output
        assert memory() is None

    Started.left.clear()
    run_ranks(2, body)
    assert not Started.left


@needs_exchange
@pytest.mark.parametrize("in_place", [True, False])
def test_autograd_is_told_of_the_write_when_it_is_landed(in_place):
    with engines(1) as (rank,):
        tensor = torch.ones(3)
        handle = started(rank.engine, "x", tensor, in_place)
        assert tensor._version == 0
        rank.engine.land(handle, math.inf)
        assert tensor._version == int(in_place)


def test_an_operation_that_does_not_end_in_time_may_be_landed_later():
    arrays = [np.full(2, rank + 1.0) for rank in range(2)]
    with engines(2) as ranks:
        handles = [started(ranks[0].engine, "x", arrays[0])]
        with pytest.raises(TimeoutError):
            ranks[0].engine.land(handles[0], 0.01)
        handles.append(started(ranks[1].engine, "x", arrays[1]))
        outputs = in_threads(ranks, lambda rank: rank.engine.land(handles[rank.rank], math.inf))
        assert [output.tolist() for output in outputs] == [[3.0, 3.0]] * 2


def test_a_failed_operation_and_handles_of_another_kind_are_not_landed():
    def body(rank):
        failed = started(rank.engine, "m", np.ones(2 + rank.rank, np.float32))
        assert rank.engine.land(failed, math.inf) is NotImplemented
        outcomes = []
        rank.engine.wait_into(outcomes, *failed._numbers)
        assert isinstance(outcomes[0], MismatchError)
        failed._finish = None
        for numbers, finish in [((1,), (lambda result: result,)), ([], ()), (None, None)]:
            other = Started()
            other._engine, other._numbers, other._outcomes, other._finish = rank.engine, numbers, (), finish
            assert rank.engine.land(other, math.inf) is NotImplemented
            other._finish = None
        assert rank.engine.land(None, math.inf) is NotImplemented

    run_ranks(2, body)


def test_a_handle_that_is_let_go_in_flight_says_so():
    array = np.ones(2)
    with engines(2) as ranks:
        handle = started(ranks[0].engine, "x", array)
        (number,) = handle._numbers
        Started.left.clear()
        kept = handle._finish
        del handle
        assert Started.left == [number]
        handle = started(ranks[1].engine, "x", np.ones(2))
        in_threads(ranks, lambda rank, last=handle: rank.engine.land(last, math.inf) if rank.rank else rank.engine.wait(number))
        del handle
        assert Started.left == [number]
        assert kept[0](None) is array
        assert array.tolist() == [2, 2]


def test_only_handles_are_made():
    with engines(1) as (rank,):
        for kind in (object, HandleState()):
            with pytest.raises(TypeError, match="HandleState"):
                rank.engine.connect(plain_of, kept_nothing, kind)
        rank.engine.connect(plain_of, kept_nothing)
        assert rank.engine.start_allreduce(np.ones(3), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True) is None
        assert rank.engine.start_allreduces([np.ones(3)], "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True, True) is None
        assert rank.engine.counters()["submitted"] == 0


@needs_exchange
@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("name", ["g", None])
def test_a_group_is_started_and_landed_in_one_go(kind, in_place, name):
    """Of arrays and tensors, beside a rank that goes the general way: names and members are the same."""
    sizes = (5, 0, 300_000)

    def body(rank):
        members = [np.full(size, rank.rank + index + 1.0) for index, size in enumerate(sizes)]
        if rank.rank == 1:
            names = [None] * 3 if name is None else member_names(f"allreduce.{name}", 3)
            group = "" if name is None else f"allreduce.{name}"
            numbers = []
            parts = zip(names, members, strict=True)
            common = (AVERAGE, 0, 0, 1.0, 1.0, group, 3)
            requests = [
                (0, member, int(DType.FLOAT64), array.shape, array, array, *common, index)
                for index, (member, array) in enumerate(parts)
            ]
            rank.engine.submit_many(requests, True, numbers)
            outcomes = []
            assert rank.engine.wait_many(numbers, outcomes)
            return members
        members[2] = torch.from_numpy(members[2])
        handle = started_group(rank.engine, name, kind(members), in_place, AVERAGE)
        assert len(handle._numbers) == 3
        assert handle._grouped
        outputs = rank.engine.land(handle, math.inf)
        assert [output is member for output, member in zip(outputs, members, strict=True)] == [in_place] * 3
        assert [type(output) for output in outputs] == [np.ndarray, np.ndarray, torch.Tensor]
        for number in handle._numbers:
            with pytest.raises(InvalidArgumentError, match=str(number)):
                rank.engine.poll(number)
        again = [finish(outcome) for finish, outcome in zip(handle._finish, handle._outcomes, strict=True)]
        assert all(first is second for first, second in zip(again, outputs, strict=True))
        handle._finish = None
        return outputs

    for outputs in run_ranks(2, body):
        for index, output in enumerate(outputs):
            assert output.tolist() == [index + 1.5] * sizes[index]


@needs_exchange
@pytest.mark.parametrize("mixed", [False, True])
def test_autograd_is_told_of_the_writes_to_a_group(mixed):
    with engines(1) as (rank,):
        tensors = [torch.ones(2), torch.ones(3)]
        handle = started_group(rank.engine, "g", [*tensors, np.ones(2)] if mixed else tensors)
        assert [tensor._version for tensor in tensors] == [0, 0]
        rank.engine.land(handle, math.inf)
        assert [tensor._version for tensor in tensors] == [1, 1]


def test_what_is_unusual_about_a_group_leaves_all_of_it_to_the_general_way():
    good = np.ones(3, np.float32)
    with engines(1) as (rank,):
        for tensors in ([], [good, None], [good, read_only()], [misaligned(), good], iter([good]), good, None):
            assert started_group(rank.engine, "g", tensors) is None
        assert started_group(rank.engine, 5, [good]) is None
        assert started_group(rank.engine, "g", [good], op=1.5) is None
        assert rank.engine.counters()["submitted"] == 0


def test_a_group_of_which_one_fails_is_not_landed():
    def body(rank):
        members = [np.ones(2), np.ones(2 + rank.rank), np.ones(2)]
        handle = started_group(rank.engine, None, members)
        assert rank.engine.land(handle, math.inf) is NotImplemented
        outcomes = []
        for number in handle._numbers:
            rank.engine.wait_into(outcomes, number)
        assert any(isinstance(outcome, MismatchError) for outcome in outcomes)
        handle._finish = None

    run_ranks(2, body)


def test_a_limit_of_a_group_is_for_each_member():
    with engines(1) as (rank,):
        handle = started_group(rank.engine, "g", [np.ones(1), np.ones(1)])
        assert rank.engine.land(handle, 60.0) is NotImplemented
        assert rank.engine.land(handle, math.inf) == [1, 1]
        handle._finish = None


def test_errors_of_what_was_started_name_the_operation():
    def body(rank):
        number, _ = start(rank.engine, "m", np.ones(2 + rank.rank, np.float32))
        with pytest.raises(MismatchError, match="allreduce of 'm'"):
            rank.engine.wait(number)
        with pytest.raises(InvalidArgumentError, match="process set 7"):
            start(rank.engine, "m", np.ones(2), process_set=SimpleNamespace(member_id=7))

    run_ranks(2, body)


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
    ids=repr,
)
def test_what_describes_no_type_is_refused(wrong):
    plain = plain_of(torch.ones(1))
    with engines(1) as (rank,):
        rank.engine.connect(lambda value: (1, 2) if wrong is None else plain._replace(**wrong), kept_nothing)
        with pytest.raises((ValueError, TypeError, SystemError)):
            rank.engine.allreduce_now(torch.ones(1), None, "x", SUM, 1.0, 1.0, WORLD_OF_TWO, True)
