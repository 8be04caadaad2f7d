"""Sums arrays in place with Intel's oneCCL, by its C interface (``libccl.so.2``, version 2021.17 or newer).

The interface is like NCCL's: one rank makes a unique id, all ranks make a communicator from it, and each collective is one call
(https://uxlfoundation.github.io/oneCCL/v2/api.html). oneCCL's part for processors is a plug-in, which needs the build of oneCCL
without SYCL, ``ccl/cpu/lib/libccl.so.1``. With the build with SYCL, making a communicator ends in a segmentation fault on a
host without an Intel GPU.
"""

import ctypes
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hvdlite.config import oneccl_folders

_LIBRARY = "libccl.so.2"
_FOR_PROCESSORS = Path("ccl", "cpu", "lib", "libccl.so.1")
_FLOAT32, _SUM = 7, 0  # onecclFloat32, onecclSum
# A part of a warning that oneCCL prints whenever CCL_LOG_LEVEL is set to another value than warn.
_OF_NO_USE = b"value of CCL_LOG_LEVEL changed"


class _UniqueId(ctypes.Structure):
    """onecclUniqueId, which is passed by value."""

    _fields_ = (("data", ctypes.c_char * 4096),)


def _places() -> list[Path]:
    """The folders in which oneCCL may be."""
    return [Path(sys.prefix, "lib"), *map(Path, oneccl_folders())]


def missing() -> str | None:
    """The reason why oneCCL cannot be used here; None if it can."""
    found = [folder for folder in _places() if (folder / _LIBRARY).exists()]
    if not found:
        return f"{_LIBRARY} of oneCCL is in no folder of LD_LIBRARY_PATH (see docs/benchmarks.md)"
    if not any((folder / _FOR_PROCESSORS).exists() for folder in found):
        return f"oneCCL in {found[0]} has no {_FOR_PROCESSORS}, its build for processors (see docs/benchmarks.md)"
    return None


def settings(local_rank: int, local_size: int, one_host: bool) -> dict[str, str]:
    """The environment variables that oneCCL needs in a process that uses another MPI, and those that make oneCCL fast.

    Args:
        local_rank: this process's number among the ranks of its host.
        local_size: the number of ranks on this host.
        one_host: do all ranks run on this host?
    """
    needed = {
        "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(local_rank),
        "CCL_LOCAL_SIZE": str(local_size),
        "CCL_ATL_TRANSPORT": "ofi",  # the alternative is Intel MPI, which would be a second MPI in this process
        "CCL_ATL_SHM": "1",  # without it, ranks of a host send messages through TCP
        "CCL_WORKER_OFFLOAD": "0",  # the caller does the work; oneCCL's own thread on the same core takes milliseconds
        "FI_SHM_DISABLE_CMA": "1",  # copies through shared memory instead of the kernel
        "CCL_LOG_LEVEL": "error",
    }
    return {**needed, "CCL_KVS_IFACE": "lo"} if one_host else needed


class Communicator:
    """A communicator of oneCCL with all ranks of the job. Making it is collective.

    Args:
        rank: the rank of this process.
        size: the number of ranks.
        from_first: a collective function that returns on all ranks the value that rank 0 passes.

    Raises:
        RuntimeError: oneCCL reports an error.
        OSError: oneCCL cannot be loaded.
    """

    def __init__(self, rank: int, size: int, from_first: Callable[[bytes | str], bytes | str]) -> None:
        with _log_on_stderr():
            self._library = _load()
            unique = _UniqueId()
            result = self._library.onecclGetUniqueId(ctypes.byref(unique)) if rank == 0 else 0
            answer = from_first(self._error("onecclGetUniqueId", result) if result else bytes(unique))
            if isinstance(answer, str):  # the error of rank 0, which all ranks raise
                raise RuntimeError(answer)
            self._handle = ctypes.c_void_p()
            self._check(
                "onecclCommInitRank",
                self._library.onecclCommInitRank(ctypes.byref(self._handle), size, _UniqueId.from_buffer_copy(answer), rank),
            )

    def sum(self, address: int, count: int) -> None:
        """Sums float32 elements over all ranks in place, and returns when the sum is there. Collective.

        Args:
            address: the address of the elements in host memory.
            count: the number of elements.

        Raises:
            RuntimeError: oneCCL reports an error.
        """
        result = self._library.onecclAllReduce(address, address, count, _FLOAT32, _SUM, self._handle, None)
        if result:
            self._check("onecclAllReduce", result)

    def version(self) -> str:
        """The name and version of the library."""
        code = ctypes.c_int()
        self._check("onecclGetVersion", self._library.onecclGetVersion(ctypes.byref(code)))
        return f"oneCCL {code.value // 10000}.{code.value // 100 % 100}"

    def close(self) -> None:
        """Frees the communicator. Collective."""
        self._check("onecclCommDestroy", self._library.onecclCommDestroy(self._handle))

    def _check(self, call: str, result: int) -> None:
        if result:
            raise RuntimeError(self._error(call, result))

    def _error(self, call: str, result: int) -> str:
        return f"{call}: {self._library.onecclGetErrorString(result).decode()} (CCL_LOG_LEVEL=info shows details)"


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Sends oneCCL's log to stderr. oneCCL prints the log to stdout, but stdout is for the tables."""
    sys.stdout.flush()
    ctypes.pythonapi.fflush(None)
    stdout = os.dup(1)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 1)
        try:
            yield
        finally:
            ctypes.pythonapi.fflush(None)
            os.dup2(stdout, 1)
            os.close(stdout)
            held.seek(0)
            os.write(2, b"".join(line for line in held if _OF_NO_USE not in line))


def _load() -> Any:
    folder = next(folder for folder in _places() if (folder / _FOR_PROCESSORS).exists())
    library = ctypes.CDLL(str(folder / _LIBRARY))
    library.onecclGetErrorString.restype = ctypes.c_char_p
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    library.onecclCommInitRank.argtypes = (pointer, size, _UniqueId, ctypes.c_int)
    library.onecclAllReduce.argtypes = (pointer, pointer, size, ctypes.c_int, ctypes.c_int, pointer, pointer)
    return library
