"""One step from an array or tensor to its result: which memory the engine uses as it is, and what it leaves alone."""

from datetime import datetime_CAPI  # a capsule of something else

import numpy as np
import pytest
from support.limits import interrupted
from support.thread_ranks import ALLREDUCE, AVERAGE, BROADCAST, SUM, engines, in_threads, run_ranks

from hvdlite.backends import backend_of
from hvdlite.dtypes import DType, code_of_name, dlpack_codes, numpy_dtype
from hvdlite.errors import ErrorCode, InvalidArgumentError, MismatchError

torch = pytest.importorskip("torch")

EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
needs_exchange = pytest.mark.skipif(EXCHANGE is None, reason="torch has no DLPack exchange functions before 2.10")
FLOAT32 = int(DType.FLOAT32)
DLPACK_CODES = dlpack_codes(DType)


def kept_nothing(memory, handle, code):
    raise AssertionError("nothing is left in flight")


def run(engine, name, source, output=None, keep=kept_nothing, op=SUM, kind=ALLREDUCE, root=0, prescale=1.0):
    """Submits an array in place, or from one to another, as the collectives do: False if that cannot be done."""
    backend = backend_of(source)
    if not backend._codes:
        backend.export(source, True)
    plain = backend.plain(source)
    if plain is None:
        return False
    code, exchange = plain
    new_output = None if output is None else lambda like: output if like is source else None
    result = engine.run_arrays(kind, name, code, source, new_output, exchange, keep, op, root, 0, prescale, 1.0)
    assert result is None or result is (source if output is None else output)
    return result is not None


def makes_output(engine, source):
    """Whether the memory of the source is found good enough for an output to be made."""
    made = []
    plain = backend_of(source).plain(source)
    if plain is not None:
        code, exchange = plain
        engine.run_arrays(ALLREDUCE, "x", code, source, made.append, exchange, kept_nothing, SUM, 0, 0, 1.0, 1.0)
    return bool(made)


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
        backend_of(source).export(source, True)  # the first of its dtype
        output = np.zeros_like(source)
        assert run(rank.engine, "apart", source, output, op=SUM)
        assert (source == np.full(shape, rank.rank + 1).astype(source.dtype)).all()
        assert run(rank.engine, None, source, kind=BROADCAST, root=1)
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
        output = torch.zeros_like(source)
        assert run(rank.engine, "apart", source, output)
        part = torch.full((3, *shape), rank.rank + 1).to(dtype)[1]  # begins inside its storage
        assert run(rank.engine, None, part, prescale=1.0)
        return output, part

    for output, part in run_ranks(2, body):
        assert output.shape == shape
        assert (output == torch.full(shape, 3).to(dtype)).all()
        assert (part == torch.full(shape, 3).to(dtype)).all()


@needs_exchange
def test_of_an_axis_of_one_the_stride_does_not_matter():
    def body(rank):
        tensor = torch.full((3, 1), float(rank.rank)).as_strided((1, 3), (17, 1))
        assert run(rank.engine, "x", tensor, op=AVERAGE)
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
        assert not run(rank.engine, "x", make())
        assert makes_output(rank.engine, make()) == (make is read_only)  # which may be read
        assert rank.engine.counters()["submitted"] == 0


def test_types_that_only_look_like_arrays_are_left_to_the_general_way():
    for value in (np.ma.ones(3), np.float32(1), [1.0], np.ones(3, ">f4"), np.ones(3, object), memoryview(b"abc")):
        assert backend_of(value).plain(value) is None


def test_an_output_of_another_size_is_refused():
    with engines(1) as (rank,):
        assert not run(rank.engine, "x", np.ones(3, np.float32), np.ones(4, np.float32))


def test_errors_name_the_operation():
    def body(rank):
        kept = []
        array = np.ones(2 + rank.rank, np.float32)
        with pytest.raises(MismatchError, match="allreduce of 'm'"):
            run(rank.engine, "m", array, keep=lambda *what: kept.append(what))
        (((source, output), handle, code),) = kept
        assert source is output is array
        assert (handle, code) == (0, ErrorCode.MISMATCH)
        with pytest.raises(InvalidArgumentError, match="process set 7"):
            rank.engine.run_arrays(ALLREDUCE, "m", FLOAT32, array, None, None, kept_nothing, SUM, 0, 7, 1.0, 1.0)

    run_ranks(2, body)


def test_what_a_signal_leaves_in_flight_is_handed_over():
    arrays = [np.full(4, rank + 1.0) for rank in range(2)]
    outputs = [np.zeros(4) for _ in arrays]
    kept = []
    with engines(2) as ranks:
        first = ranks[0].engine
        interrupted(
            lambda: run(first, "late", arrays[0], outputs[0], keep=lambda *what: kept.append(what)),
            begun=lambda: first.counters()["submitted"] == 1,
        )
        (((source, output), handle, code),) = kept
        assert source is arrays[0]
        assert output is outputs[0]
        assert code == 0
        assert not first.poll(handle)
        in_threads(
            ranks,
            lambda rank: run(rank.engine, "late", arrays[1], outputs[1]) if rank.rank else rank.engine.wait(handle),
        )
    assert (outputs[0] == 3).all()
    assert (outputs[1] == 3).all()


@needs_exchange
def test_a_tensor_that_requires_grad_is_written_and_gets_none():
    with engines(1) as (rank,):
        leaf = torch.ones(3, requires_grad=True)
        assert run(rank.engine, "x", leaf, prescale=2.0)
        assert (leaf == 2).all()
        assert leaf.is_leaf


def test_dlpack_codes_are_those_of_dlpack():
    expected = {"float32": (2, 4), "bfloat16": (4, 2), "uint8": (1, 1), "int64": (0, 8), "bool": (6, 1), "complex128": (5, 16)}
    for name, (kind, size) in expected.items():
        assert DLPACK_CODES[8 * kind + size.bit_length() - 1] == code_of_name(name)
    assert len(DType) == sum(code != 255 for code in DLPACK_CODES)


@needs_exchange
@pytest.mark.parametrize("exchange", [(datetime_CAPI, DLPACK_CODES), datetime_CAPI, (EXCHANGE, "text"), (EXCHANGE,)], ids=repr)
def test_what_is_no_exchange_is_refused(exchange):
    with engines(1) as (rank,):
        tensor = torch.ones(1)
        with pytest.raises((ValueError, TypeError, SystemError)):
            rank.engine.run_arrays(ALLREDUCE, "x", -1, tensor, None, exchange, kept_nothing, SUM, 0, 0, 1.0, 1.0)
