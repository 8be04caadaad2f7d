"""Measures the link between the hosts of a process set, by allreduces of the engine. Collective."""

import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hvdlite import startup
from hvdlite.compression import Codec
from hvdlite.config import format_ranks
from hvdlite.dtypes import DType
from hvdlite.errors import UnsupportedError
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import Average, Kind, Max, Request
from hvdlite.runtime import RUNTIME
from hvdlite.tuning.link_model import HostLink, find_link

if TYPE_CHECKING:
    from hvdlite._engine import Work


def measure_link(process_set: ProcessSet) -> HostLink:
    """The link between the hosts of the set's ranks, the same on all ranks. `find_link` says what is sent and for how long.

    If all ranks are on one host, they make one small allreduce, and measure nothing. Collective over the process set.

    Raises:
        InvalidArgumentError: this rank is not in the process set.
        UnsupportedError: a rank of the set has called `join`.
        HorovodInternalError: an operation failed.
    """
    set_id = process_set.require_member(Kind.ALLREDUCE)
    place, size = process_set.rank() or 0, process_set.size() or 1
    machines = np.zeros(size)
    machines[place] = 1 + zlib.crc32(startup.machine_id().encode())
    found = _largest(machines, set_id).tolist()
    if 0.0 in found:
        joined = [rank for rank, machine in zip(process_set.ranks or (), found, strict=True) if machine == 0]
        raise UnsupportedError(
            f"the link between hosts cannot be measured: {format_ranks(joined)} joined before. Use Compression.auto once "
            "before any rank joins, or name a compression"
        )
    hosts = len(set(found))

    def probe(elements: int, coded: bool) -> float:
        return slowest(own_seconds(elements, coded, set_id), set_id)

    return find_link(hosts, size, probe)


def slowest(seconds: float, set_id: int) -> float:
    """The largest `seconds` of all ranks of the set. Collective."""
    return float(_largest(np.array([seconds]), set_id)[0])


def _largest(values: NDArray[np.float64], set_id: int) -> NDArray[np.float64]:
    """The largest values of all ranks of the set, place by place. Overwrites and returns `values`. Collective."""
    start_allreduce(values, f"hvdlite.link.slowest.{values.size}", DType.FLOAT64, Max, set_id).result()
    return values


def own_seconds(elements: int, coded: bool, set_id: int) -> float:
    """This rank's seconds for an allreduce of float32 elements, with the codec int8 or without a codec. Collective."""
    values = np.ones(elements, np.float32)
    codec = Codec("int8") if coded else None
    begun = time.perf_counter()
    start_allreduce(
        values, f"hvdlite.link.{elements}{'.int8' if coded else ''}", DType.FLOAT32, Average, set_id, codec
    ).result()
    return time.perf_counter() - begun


def start_allreduce(
    values: NDArray[Any], name: str, dtype: DType, op: int = Average, set_id: int = 0, codec: Codec | None = None
) -> "Work":
    """Starts an allreduce in place, and returns its work. Collective over the process set.

    `dtype` is the dtype that the engine takes the elements for. The caller keeps the array until the work has ended.
    """
    address = values.ctypes.data
    request = Request(Kind.ALLREDUCE, name, int(dtype), values.shape, address, address, op=op, process_set=set_id)
    words = request if codec is None else (*request[: -len(codec.fields)], *codec.fields.values())
    return RUNTIME.require().submit((words,))
