"""The peers that take part in a run. Each of them has shown that its sums are right."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from hvdlite.bench import report
from hvdlite.bench.machine import aligned_zeros, thread_ids
from hvdlite.bench.peers import CEILINGS, PEERS, Array, Peer, Submissions
from hvdlite.bench.world import World

_PERIOD = 97  # the period of the values that are summed; a prime, so that the chunks of a buffer differ
_TRIAL_ELEMENTS = 4096


class WrongSum(Exception):
    """A peer's result is wrong, so its times mean nothing."""


class HostMemory:
    """The memory of the arrays that are summed, and the peers that can sum arrays there.

    Attributes:
        peers: the classes of the peers, by name.
        ceilings: the classes of the ceilings, which show the speed of the memory.
        manner: the value of the key ``cache`` in the records of measurements of many arrays.
    """

    peers: ClassVar[Mapping[str, type[Peer]]] = PEERS
    ceilings: ClassVar[Sequence[type[Peer]]] = CEILINGS
    manner = "warm"

    def zeros(self, shape: int | tuple[int, ...]) -> Any:
        """An array of zeros."""
        return aligned_zeros(shape)

    def write(self, array: Any, values: Array) -> None:
        """Writes as many values as the array has elements."""
        array[...] = values.reshape(array.shape)

    def read(self, array: Any) -> Array:
        """The values of an array."""
        return np.asarray(array)

    def wait(self) -> None:
        """Waits until all work that this process has begun in this memory is done."""


class Team:
    """The peers that can be measured, and the ceilings. Making and closing a team is collective.

    Args:
        world: the ranks.
        wanted: the names of the wanted peers; None for those that take part by default.
        memory: the memory of the arrays; by default the host's.

    Attributes:
        peers: the peers, in the order of `HostMemory.peers`.
        ceilings: the ceilings, which show the speed of the memory.
        threads: for each peer, the ids of the threads that it has started.
        records: a record of each wanted peer, with its version or the reason why it is absent.
    """

    def __init__(self, world: World, wanted: Sequence[str] | None, memory: HostMemory | None = None) -> None:
        self.world, self.memory = world, memory or HostMemory()
        self.peers: list[Peer] = []
        self.threads: dict[str, set[int]] = {}
        self.records: list[report.Record] = []
        for name, kind in self.memory.peers.items():
            if name not in wanted if wanted is not None else not kind.by_default:
                continue
            before = thread_ids()
            absent = world.all_agree(kind.missing()) or self._add(kind)
            self.threads[name] = thread_ids() - before
            version = "" if absent else self.peers[-1].version()
            self.records.append({"record": "peer", "peer": name, "absent": absent, "version": version})
        self.ceilings: list[Peer] = [kind(world) for kind in self.memory.ceilings]

    def _add(self, kind: type[Peer]) -> str | None:
        """Makes a peer and checks its first sums. Returns the reason if the peer cannot be made, otherwise None.

        Raises:
            WrongSum: a sum is wrong. All ranks raise it.
        """
        peer, problem = None, None
        try:
            peer = kind(self.world)
        except Exception as error:  # an error of the peer's software; the other peers are measured without it
            problem = f"it cannot be started: {error}"
        problem = self.world.all_agree(problem)
        if peer is not None and problem is None:
            self.peers.append(peer)
            self._try_out(peer)
        return problem

    def close(self) -> None:
        """Stops the peers. Collective."""
        for peer in reversed(self.peers):
            peer.close()

    def run(self, batch: Submissions) -> None:
        """Runs a batch to its end."""
        batch.run()
        self.memory.wait()

    def check_call(self, peer: Peer, array: Any, call: Callable[[], Any]) -> None:
        """Makes one call and compares the result with the right sum. Collective.

        Raises:
            WrongSum: the result differs on a rank. All ranks raise it.
        """
        self.memory.write(array, contribution(self.world.rank, prod(array.shape)))
        result = call()
        self.memory.wait()
        self._check(peer, [array], [array if result is None else result])

    def check_batch(self, peer: Peer, arrays: Sequence[Any], batch: Submissions) -> None:
        """Runs a batch once and compares the results with the right sums. Collective.

        Raises:
            WrongSum: a result differs on a rank. All ranks raise it.
        """
        for array in arrays:
            self.memory.write(array, contribution(self.world.rank, prod(array.shape)))
        self.run(batch)
        self._check(peer, arrays, arrays)

    def _check(self, peer: Peer, arrays: Sequence[Any], results: Sequence[Any]) -> None:
        found = [self.memory.read(result).ravel() for result in results]
        largest = expected_sum(self.world.size, max(values.size for values in found))
        right = all(np.array_equal(values, largest[: values.size]) for values in found)
        nbytes = report.format_bytes(sum(array.nbytes for array in arrays))
        refuse_wrong(self.world, peer.name, None if right else f"the sum of {nbytes} is wrong")

    def _try_out(self, peer: Peer) -> None:
        arrays = [self.memory.zeros(elements) for elements in (_TRIAL_ELEMENTS, 1, 17)]
        call = peer.blocking(arrays[0])
        if call is not None:
            self.check_call(peer, arrays[0], call)
        batch = peer.batch(arrays)
        if batch is not None:
            self.check_batch(peer, arrays, batch)


def contribution(rank: int, count: int) -> Array:
    """A rank's array of `count` elements: small whole numbers, which float32 sums exactly."""
    period = (np.arange(_PERIOD) * 7 + 31 * rank) % _PERIOD
    return np.resize(period.astype(np.float32), count)


def expected_sum(ranks: int, count: int) -> Array:
    """The sum of the contributions of all ranks, with `count` elements."""
    period = np.sum([contribution(rank, _PERIOD) for rank in range(ranks)], axis=0, dtype=np.float32)
    return np.resize(period, count)


def refuse_wrong(world: World, subject: str, problem: str | None) -> None:
    """Raises `WrongSum` on all ranks if any rank has a problem with the results of `subject`. Collective."""
    if found := world.all_agree(problem):
        raise WrongSum(f"{subject}: {found}; its times mean nothing")
