"""Arenas: memory that all ranks of a process set map, so that tensors in it are reduced in place, without a copy.

The ranks must be on one host. An `Arena` is also the buffer with this rank's part. A tensor that is made from this buffer keeps
the memory of the part. The engine maps the other ranks' parts until the arena is closed, or hvdlite is shut down.
"""

from typing import TYPE_CHECKING

from hvdlite.config import format_ranks
from hvdlite.errors import HvdliteError
from hvdlite.objects import exchange_by_rank
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import Kind
from hvdlite.runtime import RUNTIME

if TYPE_CHECKING:
    from hvdlite._engine import Arena

_KINDS = ("memfd", "shm")  # in the order of preference


def make_arena(nbytes: int, name: str, process_set: ProcessSet) -> "tuple[Arena | None, str]":
    """Makes an arena for all ranks of the set, or, if one rank cannot have it or has joined, for none. Collective over the set.

    Args:
        nbytes: size of each rank's part in bytes, the same on all ranks.
        name: the name of the exchange, unique among the operations in flight.
        process_set: the ranks that share the arena; this rank is a member.

    Returns:
        The open arena or None, and a text that says why there is no arena ("" if there is one). All ranks get the same text.

    Raises:
        HorovodInternalError: a rank failed.

    """
    reason = ""
    for kind in _KINDS:
        arena, problem = _create(process_set, nbytes, kind)
        parts = exchange_by_rank((arena and arena.address, problem), f"{name}.{kind}", process_set)
        joined = [rank for rank in process_set.ranks or () if rank not in parts]
        reason = f"{format_ranks(joined)} joined before" if joined else ""
        reason = reason or _first_problem({rank: text for rank, (_, text) in parts.items()})
        if arena is not None and not reason:
            problem = _open(arena, [address for address, _ in parts.values()])
        opened = exchange_by_rank(problem, f"{name}.{kind}.opened", process_set)
        if arena is not None:
            arena.hide()
        reason = reason or _first_problem(opened)
        if not reason:
            return arena, ""
        if arena is not None:
            arena.close()
    return None, reason


def _create(process_set: ProcessSet, nbytes: int, kind: str) -> "tuple[Arena | None, str]":
    try:
        return RUNTIME.require().create_arena(process_set.require_member(Kind.ALLREDUCE), nbytes, kind), ""
    except HvdliteError as error:
        return None, str(error)


def _open(arena: "Arena", addresses: list[bytes | None]) -> str:
    try:
        arena.open([address for address in addresses if address is not None])
    except HvdliteError as error:
        return str(error)
    return ""


def _first_problem(problems: dict[int, str]) -> str:
    return next((f"rank {rank}: {problem}" for rank, problem in problems.items() if problem), "")
