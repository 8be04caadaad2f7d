"""The peers that take part in a run, each of which has shown that its sums are right."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvdlite.bench import report
from hvdlite.bench.machine import thread_ids
from hvdlite.bench.peers import CEILINGS, PEERS, Array, Peer, Submissions
from hvdlite.bench.world import World

__all__ = ["Team", "WrongSum", "check_batch", "check_call", "contribution", "expected_sum"]

_PERIOD = 97  # of the values that are summed; a prime, so that no chunk of memory looks like another
_TRIAL_ELEMENTS = 4096


class WrongSum(Exception):
    """A peer's result is not the sum: its time means nothing."""


class Team:
    """The peers that are there, and the ceilings. Making it, and closing it, is collective.

    Attributes:
        peers: in the order of the registry.
        ceilings: what the machine can do.
        threads: of each peer, the kernel's numbers of the threads that it started.
        records: a record of every wanted peer: its version, or why it is absent.
    """

    def __init__(self, world: World, wanted: Sequence[str] | None) -> None:
        self.peers: list[Peer] = []
        self.threads: dict[str, set[int]] = {}
        self.records: list[report.Record] = []
        for name, kind in PEERS.items():
            if name not in wanted if wanted is not None else not kind.by_default:
                continue
            before = thread_ids()
            absent = world.all_agree(kind.missing()) or self._add(world, kind)
            self.threads[name] = thread_ids() - before
            version = "" if absent else self.peers[-1].version()
            self.records.append({"record": "peer", "peer": name, "absent": absent, "version": version})
        self.ceilings: list[Peer] = [kind(world) for kind in CEILINGS]

    def _add(self, world: World, kind: type[Peer]) -> str | None:
        """Makes a peer and lets it reduce something; what went wrong, or None.

        Raises:
            WrongSum: it does not reduce as it should.
        """
        peer, problem = None, None
        try:
            peer = kind(world)
        except Exception as error:  # any error of its software: the others are measured without it
            problem = f"it does not start: {error}"
        problem = world.all_agree(problem)
        if peer is not None and problem is None:
            self.peers.append(peer)
            _try_out(world, peer)
        return problem

    def close(self) -> None:
        """Stops the peers."""
        for peer in reversed(self.peers):
            peer.close()


def contribution(rank: int, count: int) -> Array:
    """What a rank adds to a sum: small whole numbers, which float32 sums exactly."""
    period = (np.arange(_PERIOD) * 7 + 31 * rank) % _PERIOD
    return np.resize(period.astype(np.float32), count)


def expected_sum(ranks: int, count: int) -> Array:
    """The sum of the contributions."""
    period = np.sum([contribution(rank, _PERIOD) for rank in range(ranks)], axis=0, dtype=np.float32)
    return np.resize(period, count)


def check_call(world: World, peer: Peer, array: Array, call: Callable[[], Any]) -> None:
    """Calls once and compares the result with the sum. Collective.

    Raises:
        WrongSum: it is another; raised on all ranks.
    """
    array[:] = contribution(world.rank, array.size)
    result = call()
    result = array if result is None else np.asarray(result)
    _agree(world, peer, array.nbytes, np.array_equal(result, expected_sum(world.size, array.size)))


def check_batch(world: World, peer: Peer, arrays: Sequence[Array], batch: Submissions) -> None:
    """As `check_call`, for many arrays."""
    for array in arrays:
        array[...] = contribution(world.rank, array.size).reshape(array.shape)
    batch.run()
    largest = expected_sum(world.size, max(array.size for array in arrays))
    right = all(np.array_equal(array.ravel(), largest[: array.size]) for array in arrays)
    _agree(world, peer, sum(array.nbytes for array in arrays), right)


def _agree(world: World, peer: Peer, nbytes: int, right: bool) -> None:
    wrong = world.all_agree(None if right else f"the sum of {report.format_bytes(nbytes)} is wrong")
    if wrong:
        raise WrongSum(f"{peer.name}: {wrong}; its times are worth nothing")


def _try_out(world: World, peer: Peer) -> None:
    array = np.empty(_TRIAL_ELEMENTS, dtype=np.float32)
    call = peer.blocking(array)
    if call is not None:
        check_call(world, peer, array, call)
    arrays = [np.empty(elements, dtype=np.float32) for elements in (_TRIAL_ELEMENTS, 1, 17)]
    batch = peer.batch(arrays)
    if batch is not None:
        check_batch(world, peer, arrays, batch)
