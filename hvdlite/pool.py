"""The processes of an elastic job: its ranks, and spares, which can replace lost ranks.

A spare waits in `hvdlite.init`. When a rank is lost, all living processes regroup (`ProcessPool.regroup`) and call one spare
for each missing rank. A called spare runs the program up to the elastic function, while the ranks train without it. Then the
spare is ready. At the ranks' next commit or step all processes regroup once more, and the spare becomes a rank.

MPI agrees on the living processes and keeps their order (ULFM's MPIX_Comm_shrink). A spare regroups in a thread of its own, so
that the ranks do not wait for the spare's program. But the ranks wait for this thread, which needs Python's GIL. (To avoid that
wait, the ranks would have to agree without the spares, and include a spare only when it is ready.) For their operations the
ranks have another communicator.
"""

import enum
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvdlite.topology import Topology

# The seconds after which a wait handles signals.
_SLICE = 0.1
# The seconds after which a spare looks for messages again.
_LISTEN_EVERY = 0.01
# Tags of the two messages: a spare is ready, and the job is over. The messages have no content.
_READY, _OVER = 1, 2


class Role(enum.IntEnum):
    """The present role of a process."""

    RANK = 0  # it trains
    WAITING = 1  # a spare in init()
    CALLED = 2  # a spare that runs the program up to its elastic function
    READY = 3  # a spare that waits in its elastic function


@dataclass(frozen=True)
class Process:
    """One process of the pool.

    Attributes:
        role: the present role.
        host: a text that is the same for all processes of a host.
        seat: the local rank by which the program chooses its devices; -1 for a spare that waits.
    """

    role: Role
    host: str
    seat: int


def assign_roles(processes: Sequence[Process], wanted: int) -> list[Process]:
    """The roles after a change: ready spares become ranks, and one waiting spare is called for each rank that is missing.

    A called spare gets the lowest free seat of its host. That is the seat of the lost rank, if this rank was on the same host.

    Args:
        processes: the living processes.
        wanted: the number of ranks at the beginning of the job.
    """
    after = [replace(each, role=Role.RANK) if each.role is Role.READY else each for each in processes]
    missing = wanted - sum(each.role in (Role.RANK, Role.CALLED) for each in after)
    for index, each in enumerate(after):
        if missing > 0 and each.role is Role.WAITING:
            taken = {other.seat for other in after if other.host == each.host}
            after[index] = Process(Role.CALLED, each.host, min(set(range(len(after))) - taken))
            missing -= 1
    return after


def topology_when_joined(processes: Sequence[Process], index: int) -> Topology:
    """The topology that a called spare will have if the pool does not change again; its local rank is its seat.

    Args:
        processes: the pool.
        index: the index of the spare in the pool.
    """
    ranks = [other for other, each in enumerate(processes) if each.role is Role.RANK]
    members = ranks + [other for other, each in enumerate(processes) if each.role is Role.CALLED]
    hosts = [processes[member].host for member in members]
    counts = {host: hosts.count(host) for host in hosts}  # in the order of their first member
    own = processes[index]
    peers = [host for host, count in counts.items() if count > own.seat or host == own.host]
    return Topology(
        members.index(index),
        len(members),
        own.seat,
        counts[own.host],
        peers.index(own.host),
        len(peers),
        len(set(counts.values())) == 1,
    )


class ProcessPool:
    """The living processes of an elastic job, as far as this process knows. The constructor is collective over them.

    Args:
        comm: the mpi4py communicator of all processes; the ranks come first.
        wanted: the number of ranks.
        host: the host of this process.

    Attributes:
        comm: the communicator of all processes. Communicators that `regroup` makes are never freed, because MPI cannot free a
            communicator with lost processes.
        ranks: the communicator of the ranks; MPI.COMM_NULL in a spare.
        processes: the processes, by their ranks in `comm`.
        lost: how many ranks were lost before the last `regroup`.
    """

    def __init__(self, comm: Any, wanted: int, host: str = "") -> None:
        self.comm = self.ranks = comm
        self._unused: Any = None
        self._wanted = wanted
        self.lost = 0
        self.processes = [Process(Role.RANK, host, 0)] * comm.size
        if comm.size > wanted:
            hosts = comm.allgather(host)
            self.processes = [
                Process(Role.RANK, each, hosts[:number].count(each)) if number < wanted else Process(Role.WAITING, each, -1)
                for number, each in enumerate(hosts)
            ]
            self._split()

    @property
    def own(self) -> Process:
        """This process."""
        return self.processes[int(self.comm.rank)]

    def take_ranks(self, comm: Any) -> bool:
        """May a job send on `comm` itself? True once for a `comm` that `regroup` made, because the pool sends nothing on it."""
        unused, self._unused = self._unused, None
        return unused is not None and comm is unused

    def has(self, role: Role) -> bool:
        """Is there a process with this role?"""
        return any(each.role is role for each in self.processes)

    def regroup(self, role: Role, report: Any, shrink: Callable[[Any], Any] = lambda comm: comm.Shrink()) -> list[Any]:
        """Removes lost processes from the pool, and gives all living ones new roles. Collective over the living processes.

        Ranks call `regroup` by themselves, and interrupt the waiting spares. If a process is lost meanwhile, `regroup` begins
        again.

        Args:
            role: the role of this process until now.
            report: any picklable object for the other processes.
            shrink: makes the communicator of the living processes, and waits for them.

        Returns:
            The reports of the new ranks, in their order.

        Raises:
            OperationTimeoutError, SystemFailure: as for `hvdlite.shrink.shrink_in_thread`, if `shrink` calls it.
        """
        from mpi4py import MPI

        ranks = self._count_ranks()
        while True:
            if self.has_spares() and not self.comm.Is_revoked():
                self.comm.Revoke()  # interrupts the spares: if it reaches one process, it reaches all
            survivors = shrink(self.comm)
            before = survivors.group.Translate_ranks(list(range(survivors.size)), self.comm.group)
            self.processes = [self.processes[number] for number in before]
            self.comm = self.ranks = survivors
            try:
                everyone = survivors.allgather((replace(self.own, role=role), report))
                self.processes = [each for each, _ in everyone]
                self.lost = ranks - self._count_ranks()
                self.processes = assign_roles(self.processes, self._wanted)
                if self.has_spares():
                    self._split()
                self._unused = self.ranks
            except MPI.Exception:
                survivors.Revoke()  # other processes may wait in an operation on it for a lost process
            else:
                reports = zip(self.processes, (report for _, report in everyone), strict=True)
                return [report for each, report in reports if each.role is Role.RANK]

    def _count_ranks(self) -> int:
        return sum(each.role is Role.RANK for each in self.processes)

    def has_spares(self) -> bool:
        """Are there processes besides the ranks?"""
        return any(each.role is not Role.RANK for each in self.processes)

    def has_news_of_spare(self) -> bool:
        """Is a called spare ready, or lost? Only the first rank may call this. Sends nothing."""
        from mpi4py import MPI

        try:
            return bool(self.comm.Iprobe(MPI.ANY_SOURCE, _READY))
        except MPI.Exception:
            return any(self.processes[number].role is Role.CALLED for number in self._take_note_of_lost())

    def dismiss_spares(self) -> None:
        """Tells the spares that the job is over."""
        from mpi4py import MPI

        for number, each in enumerate(self.processes):
            if each.role is not Role.RANK:
                try:
                    self.comm.Send(b"", number, _OVER)
                except MPI.Exception:
                    continue  # the spare is lost, or the job failed while the processes regrouped

    def tell_ready(self) -> None:
        """Tells the first rank that this spare is ready."""
        self.comm.Send(b"", [each.role for each in self.processes].index(Role.RANK), _READY)

    def next_call(self) -> "SpareCall":
        """The next step of a spare; SpareCall.NONE if it has to wait. Sends nothing."""
        from mpi4py import MPI

        try:
            return SpareCall.LEAVE if self.comm.Iprobe(MPI.ANY_SOURCE, _OVER) else SpareCall.NONE
        except MPI.Exception as error:
            if error.Get_error_class() == MPI.ERR_REVOKED:
                return SpareCall.REGROUP
        lost = self._take_note_of_lost()
        has_ranks = any(each.role is Role.RANK and number not in lost for number, each in enumerate(self.processes))
        return SpareCall.NONE if has_ranks else SpareCall.END

    def _take_note_of_lost(self) -> set[int]:
        """The ranks in `comm` of the lost processes. After this call, messages of living processes can be received again."""
        from mpi4py import MPI

        lost = self.comm.Get_failed()
        self.comm.Ack_failed(lost.size)
        return set(MPI.Group.Translate_ranks(lost, list(range(lost.size)), self.comm.group))

    def _split(self) -> None:
        from mpi4py import MPI

        self.ranks = self.comm.Split(0 if self.own.role is Role.RANK else MPI.UNDEFINED, self.comm.rank)


class SpareCall(enum.Enum):
    """The next step of a spare."""

    NONE = 0
    REGROUP = 1  # the processes regroup
    LEAVE = 2  # the job is over
    END = 3  # all ranks are lost


class Spare:
    """This process while it is a spare. A thread regroups with the other processes.

    Args:
        pool: a pool in which this process is a spare.

    Attributes:
        pool: the present pool.
        topology: the topology that this process will have, once it is called.
    """

    def __init__(self, pool: ProcessPool) -> None:
        self.pool = pool
        self.topology: Topology | None = None
        self._role = Role.WAITING  # kept here, because the pool's copy may change while the processes regroup
        self._reports: list[Any] = []
        self._is_ready = False
        self._failed: BaseException | None = None
        self._told: Any = None  # the communicator over which the ranks were told that this spare is ready
        self._over = SpareCall.NONE
        self._changed = threading.Event()
        threading.Thread(target=self._attend, name="hvdlite-spare", daemon=True).start()

    def wait_until(self, role: Role) -> list[Any]:
        """Waits until this process has another role: CALLED in init(), RANK in an elastic function.

        Returns:
            The reports of the ranks.

        Raises:
            SystemExit: the job is over, or all of its ranks are lost.
            BaseException: the exception with which the spare's thread has ended.
        """
        if role is Role.RANK:
            self._is_ready = True
        while self._role is not role and self._over is SpareCall.NONE:
            self._changed.wait(_SLICE)  # in slices, so that Python can handle signals
            self._changed.clear()
        if self._failed is not None:
            raise self._failed
        if self._over is SpareCall.END:
            logging.getLogger("hvdlite").error("all ranks of this elastic job are lost; this spare has no state, so it ends")
            raise SystemExit(1)
        if self._over is SpareCall.LEAVE:
            raise SystemExit(0)
        return self._reports

    def end(self) -> None:
        """Runs in the exit handler. Kills this process unless the job is over, because MPI reports only killed processes."""
        if self._over is SpareCall.NONE:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    def _attend(self) -> None:
        try:
            while self._role is not Role.RANK and self._over is SpareCall.NONE:
                self._take_next_call()
        except BaseException as error:
            self._failed, self._over = error, SpareCall.END
        self._changed.set()

    def _take_next_call(self) -> None:
        if self._is_ready and self._told is not self.pool.comm:
            self._told = self.pool.comm
            self.pool.tell_ready()
        call = self.pool.next_call()
        if call is SpareCall.NONE:
            time.sleep(_LISTEN_EVERY)
        elif call is SpareCall.REGROUP:
            self._reports = self.pool.regroup(Role.READY if self._is_ready else self._role, None)
            self._role = self.pool.own.role
            if self._role is Role.CALLED:
                self.topology = topology_when_joined(self.pool.processes, self.pool.comm.rank)
            self._changed.set()
        else:
            self._over = call
