"""Calls the fake NCCL directly, as the engine calls the real one, for tests of the fake itself."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

from support.fake_gpu import DeviceArray, FakeGpus, Stream
from support.limits import eventually

IN_PROGRESS = 7
INVALID_USAGE = 5
SUM, PROD, MAX, MIN, AVG = range(5)
TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int))


_DATA = [c_void_p, c_void_p, c_size_t, c_int]
_SIGNATURES: dict[str, list[Any]] = {
    "ncclGetUniqueId": [POINTER(UniqueId)],
    "ncclCommInitRankConfig": [POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(Config)],
    "ncclCommGetAsyncError": [c_void_p, POINTER(c_int)],
    "ncclCommFinalize": [c_void_p],
    "ncclCommDestroy": [c_void_p],
    "ncclCommAbort": [c_void_p],
    "ncclGetLastError": [c_void_p],
    "ncclAllReduce": [*_DATA, c_int, c_void_p, c_void_p],
    "ncclBroadcast": [*_DATA, c_int, c_void_p, c_void_p],
    "ncclReduce": [*_DATA, c_int, c_int, c_void_p, c_void_p],
    "ncclAllGather": [*_DATA, c_void_p, c_void_p],
    "ncclReduceScatter": [*_DATA, c_int, c_void_p, c_void_p],
    "ncclSend": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
    "ncclRecv": [c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p],
}


class NcclError(Exception):
    """A call or a communicator reports an error; ``code`` is NCCL's error code."""

    def __init__(self, what: str, code: int, text: str = "") -> None:
        super().__init__(f"{what}: {code} {text}")
        self.code = code


def library(gpus: FakeGpus) -> ctypes.CDLL:
    for name, arguments in _SIGNATURES.items():
        getattr(gpus.nccl, name).argtypes = arguments
    gpus.nccl.ncclGetLastError.restype = c_char_p
    return gpus.nccl


def unique_id(gpus: FakeGpus) -> bytes:
    made = UniqueId()
    assert library(gpus).ncclGetUniqueId(byref(made)) == 0
    return bytes(made)


class Comm:
    """One rank's non-blocking communicator with a stream of its own on GPU `device` (by default the rank's number)."""

    def __init__(self, gpus: FakeGpus, identity: bytes, size: int, rank: int, device: int | None = None) -> None:
        self.gpus, self.nccl, self.size, self.rank = gpus, library(gpus), size, rank
        self.device = rank if device is None else device
        self.stream: Stream = gpus.stream(self.device)
        self.handle = c_void_p()
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, 0)
        with gpus.on(self.device):
            code = self.nccl.ncclCommInitRankConfig(
                byref(self.handle), size, UniqueId.from_buffer_copy(identity), rank, byref(config)
            )
        if code not in (0, IN_PROGRESS):
            raise NcclError("ncclCommInitRankConfig", code)

    def state(self) -> int:
        error = c_int()
        assert self.nccl.ncclCommGetAsyncError(self.handle, byref(error)) == 0
        return error.value

    def settle(self) -> None:
        """Waits until the last call is complete."""
        if not eventually(lambda: self.state() != IN_PROGRESS):
            raise TimeoutError("NCCL has not completed the call")
        state = self.state()
        if state:
            raise NcclError("the communicator", state, self.nccl.ncclGetLastError(self.handle).decode())

    def begin(self, function: str, *arguments: Any) -> None:
        """Makes a call without a wait. Arrays stand for their addresses, and names of dtypes for NCCL's types."""
        values = [a.ptr if isinstance(a, DeviceArray) else TYPES.get(str(a), a) for a in arguments]
        with self.gpus.on(self.device):
            code = getattr(self.nccl, function)(*values, self.handle, self.stream.handle)
        if code not in (0, IN_PROGRESS):
            raise NcclError(function, code, self.nccl.ncclGetLastError(self.handle).decode())

    def call(self, function: str, *arguments: Any) -> None:
        self.begin(function, *arguments)
        self.settle()

    def group_start(self) -> None:
        assert self.nccl.ncclGroupStart() == 0

    def group_end(self) -> None:
        code = self.nccl.ncclGroupEnd()
        assert code in (0, IN_PROGRESS), code
        self.settle()

    def finish(self) -> None:
        assert self.nccl.ncclCommFinalize(self.handle) in (0, IN_PROGRESS)
        self.settle()
        assert self.nccl.ncclCommDestroy(self.handle) == 0

    def abort(self) -> None:
        assert self.nccl.ncclCommAbort(self.handle) == 0
