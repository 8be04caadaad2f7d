"""The peers that take part in a run. Each of them has shown that its sums are right."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hvdlite.bench import report
from hvdlite.bench.machine import thread_ids
from hvdlite.bench.peers import CEILINGS, PEERS, Array, Peer, Submissions
from hvdlite.bench.world import World

__all__ = ["Team", "WrongSum", "check_batch", "check_call", "check_sum", "contribution", "expected_sum", "refuse_wrong"]

_PERIOD = 97  # the period of the values that are summed; a prime, so that no two chunks of memory have the same values
_TRIAL_ELEMENTS = 4096


class WrongSum(Exception):
    """A peer's result is wrong, so its times mean nothing."""


class Team:
    """The peers that can be measured, and the ceilings. Making and closing a team is collective.

    Args:
        world: the ranks.
        wanted: the names of the wanted peers; None for those that take part by default.

    Attributes:
        peers: the peers, in the order of the registry.
        ceilings: the copies that show the speed of the machine.
        threads: for each peer, the ids of the threads that it has started.
        records: a record of each wanted peer, with its version or the reason why it is absent.
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
        """Makes a peer and checks a first sum of it. Returns the reason if it cannot be made, otherwise None.

        Raises:
            WrongSum: the first sum is wrong.
        """
        peer, problem = None, None
        try:
            peer = kind(world)
        except Exception as error:  # an error of the peer's software; the other peers are measured without it
            problem = f"it cannot be started: {error}"
        problem = world.all_agree(problem)
        if peer is not None and problem is None:
            self.peers.append(peer)
            _try_out(world, peer)
        return problem

    def close(self) -> None:
        """Stops the peers. Collective."""
        for peer in reversed(self.peers):
            peer.close()


def contribution(rank: int, count: int) -> Array:
    """A rank's array of `count` elements: small whole numbers, which float32 sums exactly."""
    period = (np.arange(_PERIOD) * 7 + 31 * rank) % _PERIOD
    return np.resize(period.astype(np.float32), count)


def expected_sum(ranks: int, count: int) -> Array:
    """The sum of the contributions of all ranks, with `count` elements."""
    period = np.sum([contribution(rank, _PERIOD) for rank in range(ranks)], axis=0, dtype=np.float32)
    return np.resize(period, count)


def check_call(world: World, peer: Peer, array: Array, call: Callable[[], Any]) -> None:
    """Makes one call and compares the result with the right sum. Collective.

    Raises:
        WrongSum: the result differs on a rank. All ranks raise it.
    """
    array[:] = contribution(world.rank, array.size)
    result = call()
    result = array if result is None else np.asarray(result)
    check_sum(world, peer.name, array.nbytes, np.array_equal(result, expected_sum(world.size, array.size)))


def check_batch(world: World, peer: Peer, arrays: Sequence[Array], batch: Submissions) -> None:
    """Runs a batch once and compares the results with the right sums. Collective.

    Raises:
        WrongSum: a result differs on a rank. All ranks raise it.
    """
    for array in arrays:
        array[...] = contribution(world.rank, array.size).reshape(array.shape)
    batch.run()
    largest = expected_sum(world.size, max(array.size for array in arrays))
    right = all(np.array_equal(array.ravel(), largest[: array.size]) for array in arrays)
    check_sum(world, peer.name, sum(array.nbytes for array in arrays), right)


def check_sum(world: World, name: str, nbytes: int, right: bool) -> None:
    """Raises `WrongSum` on all ranks if the sum of `nbytes` bytes by the peer `name` is not right on all ranks. Collective."""
    refuse_wrong(world, name, None if right else f"the sum of {report.format_bytes(nbytes)} is wrong")


def refuse_wrong(world: World, subject: str, problem: str | None) -> None:
    """Raises `WrongSum` on all ranks if any rank has a problem with the results of `subject`. Collective."""
    if found := world.all_agree(problem):
        raise WrongSum(f"{subject}: {found}; its times mean nothing")


def _try_out(world: World, peer: Peer) -> None:
    array = np.empty(_TRIAL_ELEMENTS, dtype=np.float32)
    call = peer.blocking(array)
    if call is not None:
        check_call(world, peer, array, call)
    arrays = [np.empty(elements, dtype=np.float32) for elements in (_TRIAL_ELEMENTS, 1, 17)]
    batch = peer.batch(arrays)
    if batch is not None:
        check_batch(world, peer, arrays, batch)
