"""The processes of an elastic job: its ranks, and spares, which can take the place of ranks that are lost.

A spare waits in `hvdlite.init`. When a rank is lost, all processes that live regroup (`ProcessPool.regroup`), and for each rank
that is missing a spare is called. It runs the program up to the elastic function, while the ranks train without it. Then it is
ready. At the ranks' next commit or step all regroup once more, and the spare is a rank from then on.

MPI agrees on the processes that live and keeps their order (ULFM's MPIX_Comm_shrink). A spare takes part in a thread of its
own, so that the ranks do not wait for its program. The ranks' own communicator is another one.
"""

import enum
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvdlite.errors import OperationTimeoutError, SystemFailure
from hvdlite.topology import Topology

__all__ = [
    "Process",
    "ProcessPool",
    "Role",
    "Spare",
    "assign_roles",
    "shrink_at_exit",
    "shrink_in_thread",
    "topology_when_joined",
]

# Seconds for which ranks wait for each other before a rank logs it; and the time between two looks at signals meanwhile.
_WARN_AFTER, _SLICE = 10.0, 0.1
# So many probes let MPI take note of lost processes. It reads that news while it makes progress, which asking for the lost
# processes does not, and Open MPI reads it in every eighth pass only.
_PROBES = 8
# Seconds between two looks of a spare for messages.
_LISTEN_EVERY = 0.01
# Tags of the two messages: a spare is ready, and the job is over. They have no content.
_READY, _OVER = 1, 2


class Role(enum.IntEnum):
    """What a process does at present."""

    RANK = 0  # it trains
    WAITING = 1  # a spare in init()
    CALLED = 2  # a spare that runs the program up to its elastic function
    READY = 3  # a spare that waits in its elastic function


@dataclass(frozen=True)
class Process:
    """One process of the pool.

    Attributes:
        role: at present.
        host: a text, the same for all processes of a host.
        seat: the local rank by which the program has chosen devices, or is to choose them; -1 for a spare that waits.
    """

    role: Role
    host: str
    seat: int


def assign_roles(processes: Sequence[Process], wanted: int) -> list[Process]:
    """The roles after a change: ready spares are ranks, and for each rank that is missing a spare is called.

    A called spare gets the lowest seat of its host that nobody has: the lost rank's, if it was on the same host.

    Args:
        processes: those that live.
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
    """The numbers that a called spare will have if nothing else happens; its local rank is its seat.

    Args:
        processes: the pool.
        index: of the spare in it.
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
    """The processes of an elastic job that live, as far as this process knows. Making one is collective over them.

    Args:
        comm: the mpi4py communicator of all of them; the ranks come first.
        wanted: the number of ranks.
        host: of this process.

    Attributes:
        comm: of all processes. Nobody frees one that `regroup` has made: MPI cannot while processes are lost.
        ranks: the communicator of the ranks; MPI.COMM_NULL in a spare.
        processes: by their numbers in `comm`.
        lost: how many ranks were lost between the last two pools.
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
        """May a job and its engine send on this communicator itself, not on duplicates? Once, if `regroup` made it.

        The pool sends nothing on `ranks`: to spares it sends on `comm`. A second job would receive the first one's messages.
        """
        unused, self._unused = self._unused, None
        return unused is not None and comm is unused

    def has(self, role: Role) -> bool:
        """Is there a process with this role?"""
        return any(each.role is role for each in self.processes)

    def regroup(self, role: Role, report: Any, shrink: Callable[[Any], Any] = lambda comm: comm.Shrink()) -> list[Any]:
        """Makes the pool that of the processes that live. Collective over them.

        Ranks come by themselves, and call the spares. If processes are lost meanwhile, this begins anew.

        Args:
            role: of this process until now.
            report: what the other processes learn of it.
            shrink: makes the communicator of the processes that live, and waits for them.

        Returns:
            The reports of those that are ranks now, in their order.

        Raises:
            Whatever `shrink` raises.
        """
        from mpi4py import MPI

        ranks = self._count_ranks()
        while True:
            if self.has_spares() and not self.comm.Is_revoked():
                self.comm.Revoke()  # this is how spares are called: it reaches all if it reaches one
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
                survivors.Revoke()  # others may wait in there for a process that is lost
            else:
                reports = zip(self.processes, (report for _, report in everyone), strict=True)
                return [report for each, report in reports if each.role is Role.RANK]

    def _count_ranks(self) -> int:
        return sum(each.role is Role.RANK for each in self.processes)

    def has_spares(self) -> bool:
        """Are there processes besides the ranks?"""
        return any(each.role is not Role.RANK for each in self.processes)

    def has_news_of_spare(self) -> bool:
        """Is a spare that was called ready, or lost? For the first rank. Sends nothing."""
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
                    continue  # it is lost, or the processes were regrouping when this job failed

    def tell_ready(self) -> None:
        """Tells the first rank that this spare is ready."""
        self.comm.Send(b"", [each.role for each in self.processes].index(Role.RANK), _READY)

    def next_call(self) -> "SpareCall":
        """What a spare has to do now; SpareCall.NONE if it goes on waiting. Sends nothing."""
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
        """The numbers of processes that are lost. From now on messages of others can be received again."""
        from mpi4py import MPI

        lost = self.comm.Get_failed()
        self.comm.Ack_failed(lost.size)
        return set(MPI.Group.Translate_ranks(lost, list(range(lost.size)), self.comm.group))

    def _split(self) -> None:
        from mpi4py import MPI

        self.ranks = self.comm.Split(0 if self.own.role is Role.RANK else MPI.UNDEFINED, self.comm.rank)


class SpareCall(enum.Enum):
    """What a spare is told."""

    NONE = 0
    REGROUP = 1  # the processes regroup
    LEAVE = 2  # the job is over
    END = 3  # all ranks are lost


class Spare:
    """This process while it is a spare. A thread of its own regroups with the others.

    Args:
        pool: with this process as a spare.

    Attributes:
        pool: as it is at present.
        topology: the numbers that it will have, once it is called.
    """

    def __init__(self, pool: ProcessPool) -> None:
        self.pool = pool
        self.topology: Topology | None = None
        self._role = Role.WAITING  # as this process knows it: in the pool it may change while processes regroup
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
        """
        if role is Role.RANK:
            self._is_ready = True
        while self._role is not role and self._over is SpareCall.NONE:
            self._changed.wait(_SLICE)  # in slices, so that Python can handle signals
            self._changed.clear()
        if self._failed is not None:
            raise self._failed
        if self._over is SpareCall.END:
            logging.getLogger("hvdlite").error("all ranks of this elastic job are lost, and a spare has no state to go on with")
            raise SystemExit(1)
        if self._over is SpareCall.LEAVE:
            raise SystemExit(0)
        return self._reports

    def end(self) -> None:
        """In the exit handler. If the job is not over, this process ends by a signal: of other endings MPI tells nobody."""
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


def shrink_in_thread(comm: Any, patience: float) -> Any:
    """The communicator of the processes that live, in their order. All of them must come.

    MPI's wait cannot be interrupted, so a thread waits there, and this one handles signals.

    Args:
        comm: of the job before.
        patience: seconds to wait; 0: for ever.

    Raises:
        OperationTimeoutError: others have not come in time.
        SystemFailure: MPI could not agree.
    """
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(comm.Shrink()), name="hvdlite-shrink", daemon=True)
    thread.start()
    for wait in _waits(patience):
        thread.join(wait)
        if not thread.is_alive():
            break
    if not made:
        raise SystemFailure("MPI could not agree on the processes that live (MPIX_Comm_shrink failed)")
    return made[0]


def shrink_at_exit(comm: Any, patience: float) -> Any:
    """As `shrink_in_thread`, in exit handlers, where Python starts no thread: waits until MPI knows of a loss first."""
    from mpi4py import MPI

    for wait in _waits(patience):
        for _ in range(_PROBES):
            MPI.COMM_SELF.Iprobe()
        if comm.Get_failed().size:
            break
        time.sleep(wait)
    return comm.Shrink()


def _waits(patience: float) -> Iterator[float]:
    """Short waits, until this much time is over; the log has a line now and then.

    Raises:
        OperationTimeoutError: it is over.
    """
    began, warn_at = time.monotonic(), _WARN_AFTER
    while True:
        yield _SLICE
        waited = time.monotonic() - began
        text = (
            f"a rank was lost, and this one has waited {waited:.3g} s for the others to notice it. They compute, or a process "
            "has ended itself with another exit code than 0, of which MPI does not tell"
        )
        if waited > warn_at:
            warn_at *= 2
            logging.getLogger("hvdlite").warning(text)
        if 0 < patience < waited:
            raise OperationTimeoutError(f"{text} (HVDLITE_STALL_SHUTDOWN_TIME_SECONDS={patience:g})")
