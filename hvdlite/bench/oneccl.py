"""Intel's oneCCL through its C interface (``libccl.so.2``, 2021.17 and up), as the benchmark needs it: sums in place.

The interface was made after NCCL's: a unique id from one rank, a communicator, a call per collective
(https://uxlfoundation.github.io/oneCCL/v2/api.html). Its part for processors is a plug-in, which needs the build of oneCCL
without SYCL, ``ccl/cpu/lib/libccl.so.1``: with the other one a communicator's making ends in a segmentation fault on a host
without an Intel GPU.
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

__all__ = ["Communicator", "missing", "settings"]

_LIBRARY = "libccl.so.2"
_FOR_PROCESSORS = Path("ccl", "cpu", "lib", "libccl.so.1")
_FLOAT32, _SUM = 7, 0  # onecclFloat32, onecclSum
_OF_NO_USE = b"value of CCL_LOG_LEVEL changed"  # a warning that comes with every level but the one that shows all warnings


class _UniqueId(ctypes.Structure):
    """Passed by value."""

    _fields_ = (("data", ctypes.c_char * 4096),)


def _places() -> list[Path]:
    """The folders in which oneCCL may be."""
    return [Path(sys.prefix, "lib"), *map(Path, oneccl_folders())]


def missing() -> str | None:
    """Why it cannot be used here, or None."""
    found = [folder for folder in _places() if (folder / _LIBRARY).exists()]
    if not found:
        return f"{_LIBRARY} of oneCCL is in no folder of LD_LIBRARY_PATH (docs/benchmarks.md says how it gets there)"
    if not any((folder / _FOR_PROCESSORS).exists() for folder in found):
        return f"oneCCL in {found[0]} has no {_FOR_PROCESSORS}, its build for processors (docs/benchmarks.md says how)"
    return None


def settings(local_rank: int, local_size: int, one_host: bool) -> dict[str, str]:
    """What oneCCL's environment must say beside another MPI, and what makes it fast there.

    Args:
        local_rank: of this process among those of its host.
        local_size: how many those are.
        one_host: do all ranks run there?
    """
    needed = {
        "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(local_rank),
        "CCL_LOCAL_SIZE": str(local_size),
        "CCL_ATL_TRANSPORT": "ofi",  # the other one is Intel MPI, a second MPI in this process
        "CCL_ATL_SHM": "1",  # else ranks of a host talk through TCP
        "CCL_WORKER_OFFLOAD": "0",  # the caller works itself; a thread of its own on the same core takes milliseconds
        "FI_SHM_DISABLE_CMA": "1",  # copies through shared memory instead of the kernel
        "CCL_LOG_LEVEL": "error",
    }
    return {**needed, "CCL_KVS_IFACE": "lo"} if one_host else needed


class Communicator:
    """All ranks of the job. Making one is collective.

    Args:
        rank: of this process in the job.
        size: of the job.
        from_first: gives all ranks what rank 0 passes.

    Raises:
        RuntimeError: oneCCL reports an error.
        OSError: it cannot be loaded.
    """

    def __init__(self, rank: int, size: int, from_first: Callable[[bytes | str], bytes | str]) -> None:
        with _log_on_stderr():
            self._library = _load()
            unique = _UniqueId()
            result = self._library.onecclGetUniqueId(ctypes.byref(unique)) if rank == 0 else 0
            told = from_first(self._error("onecclGetUniqueId", result) if result else bytes(unique))
            if isinstance(told, str):  # rank 0's trouble, which all have to hear of
                raise RuntimeError(told)
            self._handle = ctypes.c_void_p()
            self._check(
                "onecclCommInitRank",
                self._library.onecclCommInitRank(ctypes.byref(self._handle), size, _UniqueId.from_buffer_copy(told), rank),
            )

    def sum(self, address: int, count: int) -> None:
        """Sums float32 in place, and waits.

        Args:
            address: of the elements in host memory.
            count: of elements.
        """
        result = self._library.onecclAllReduce(address, address, count, _FLOAT32, _SUM, self._handle, None)
        if result:
            self._check("onecclAllReduce", result)

    def version(self) -> str:
        """Of the library."""
        code = ctypes.c_int()
        self._check("onecclGetVersion", self._library.onecclGetVersion(ctypes.byref(code)))
        return f"oneCCL {code.value // 10000}.{code.value // 100 % 100}"

    def close(self) -> None:
        """Collective."""
        self._check("onecclCommDestroy", self._library.onecclCommDestroy(self._handle))

    def _check(self, call: str, result: int) -> None:
        if result:
            raise RuntimeError(self._error(call, result))

    def _error(self, call: str, result: int) -> str:
        return f"{call}: {self._library.onecclGetErrorString(result).decode()} (CCL_LOG_LEVEL=info says more)"


@contextmanager
def _log_on_stderr() -> Iterator[None]:
    """Keeps oneCCL's log, which goes to standard output, away from the tables there; its errors go to standard error anyway."""
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
