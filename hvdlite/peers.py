"""The other processes of the job where there is no engine to watch them: while `init` runs, and at the end of the program.

MPI's collectives wait for ever for a process that has failed. Here each is posted and asked for, and between two questions this
process looks after the others: at what they said last (a message by MPI), at the processes of its own host, and at signs of
life of the other hosts.
"""

import logging
import math
import os
import pickle
import select
import signal
import socket
import time
from array import array
from pathlib import Path
from typing import Any

from hvdlite.errors import OperationTimeoutError, PeerLostError
from hvdlite.other_hosts import OtherHosts
from hvdlite.tuning.place import boot_id

__all__ = ["Peers"]

# Last words travel on MPI_COMM_WORLD under this tag. The standard grants tags up to 32767.
_TAG = 31_477
_LONGEST_PAUSE = 0.02
# Seconds in init() after which a process says what it waits for.
_WARN_AFTER = 60.0
_WHAT_FOR = "for other processes of the job: all must call it, and all hosts must reach each other"
# A process that is seen to have ended may have done its part just before, or said why: both arrive within so many seconds.
_GRACE = 0.05
# Seconds for last words to leave this process.
_DELIVERY = 0.2
_SHUT_DOWN = "Horovod has been shut down"
_SILENT = "the host is down, its link is cut, or its first rank is stopped"


class Peers:
    """The processes of a communicator. Thread: those of `init` and of the exit handlers, never two at a time.

    Making one is collective.

    Args:
        MPI: the module ``mpi4py.MPI``.
        comm: the communicator of the job.

    Attributes:
        lost: has one of them failed while this process waited here?

    Raises:
        PeerLostError: by every method that waits, if a process failed meanwhile.
        OperationTimeoutError: likewise, if patience is at its end.
    """

    def __init__(self, MPI: Any, comm: Any) -> None:  # noqa: N803 - the module's own name
        self._mpi = MPI
        self.lost = False
        self._warn_after, self._patience, self._silence = _WARN_AFTER, math.inf, math.inf
        self._others: OtherHosts | None = None
        self._processes: dict[int, int] = {}  # file descriptors of those on this host, by rank
        self._poll = select.poll()
        self._cards: list[tuple[str, int, str]] = [("", 0, "")] * comm.size
        self._comm, request = comm.Idup()
        self._wait(request)
        self._cards = self.allgather((socket.gethostname(), os.getpid(), _system()))
        self._watch_this_host()

    def describe(self, rank: int) -> str:
        """Such as ``rank 3 (host a, pid 17)``."""
        host, pid, _ = self._cards[rank]
        return f"rank {rank} (host {host}, pid {pid})" if pid else f"rank {rank}"

    def are_those_of(self, other: "Peers") -> bool:
        """Are these the same processes, in the same order?"""
        return bool(self._mpi.Group.Compare(self._comm.group, other._comm.group) == self._mpi.IDENT)

    def set_limits(self, patience: float, silence: float) -> None:
        """How long this process waits from now on, in seconds.

        Args:
            patience: for those that are stopped or silent, and for any in `allgather`.
            silence: for the next sign of life of another host in `allgather`.
        """
        self._patience, self._silence = patience, silence
        leaders = self._leaders()
        limit = min(patience, silence)
        if self._comm.rank in leaders and len(leaders) > 1 and self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE:
            others = [rank for rank in leaders if rank != self._comm.rank]
            self._others = OtherHosts(self._mpi, self._comm, others, limit)

    def allgather(self, value: Any) -> list[Any]:
        """The values of all, by rank. They are pickled."""
        mpi, mine = self._mpi, pickle.dumps(value)
        sizes = array("q", [0]) * self._comm.size
        self._wait(self._comm.Iallgather([array("q", [len(mine)]), mpi.INT64_T], [sizes, mpi.INT64_T]))
        everyone = bytearray(sum(sizes))
        self._wait(self._comm.Iallgatherv([mine, mpi.BYTE], [everyone, (list(sizes), None), mpi.BYTE]))
        values, start = [], 0
        for size in sizes:
            values.append(pickle.loads(everyone[start : start + size]))
            start += size
        return values

    def farewell(self) -> None:
        """Waits until all have come here, however long that takes, and costs next to no processor time meanwhile."""
        self._wait(self._comm.Ibarrier(), bounded=False)

    def tell(self, cause: str) -> str:
        """Last words of this process, for those that wait here. Those that do not read them later or never.

        Args:
            cause: such as ``raised ValueError: bad batch 17``.

        Returns:
            The words.
        """
        world, words = self._mpi.COMM_WORLD, f"{self.describe(self._comm.rank)} {cause}. {_SHUT_DOWN}"
        text = words.encode()
        group = self._comm.group
        ranks = self._mpi.Group.Translate_ranks(group, list(range(group.size)), world.group)
        requests, deadline = [], time.monotonic() + _DELIVERY
        try:
            for rank in ranks:
                if rank != world.rank:
                    requests.append(world.Isend([text, self._mpi.BYTE], rank, _TAG))
            while not self._mpi.Request.Testall(requests) and time.monotonic() < deadline:
                time.sleep(0.001)
        except self._mpi.Exception:  # that one is lost as well
            pass
        return words

    def end_the_stopped(self) -> None:
        """Kills processes of this host that are stopped: the job is over, and its launcher may wait for them."""
        for rank in self._stopped():
            signal.pidfd_send_signal(self._processes[rank], signal.SIGKILL)

    def _wait(self, request: Any, bounded: bool = True) -> None:
        pause, deadline, began = 1e-5, math.inf, time.monotonic()
        cause, broken = "", ""
        while True:
            try:
                # MPI may abort where a failed request is touched again.
                if not broken and request.Test():
                    return
            except self._mpi.Exception as error:
                broken = self._failed() or f"a process of the job has failed; MPI says: {error}. {_SHUT_DOWN}"
            words = self._last_words()
            cause = cause or self._ended()
            if words or (broken and cause) or time.monotonic() > deadline:
                self.lost = True
                raise PeerLostError(words or cause or broken)
            if deadline == math.inf and (cause or broken):
                deadline = time.monotonic() + _GRACE
            self._mind_limits(time.monotonic() - began, bounded)
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)

    def _mind_limits(self, waited: float, bounded: bool) -> None:
        if bounded and waited > self._warn_after:
            self._warn_after = math.inf  # once is enough
            logging.getLogger("hvdlite").warning("init() has waited %.3g s %s", waited, _WHAT_FOR)
        if bounded and (silent := self._silent(self._silence)):
            self.lost = True
            limit = f"{self._silence:g} s (HVDLITE_PEER_TIMEOUT)"
            raise PeerLostError(self.tell(f"has heard nothing for {limit} from the host of {silent}: {_SILENT}"))
        if waited > self._patience:
            self._give_up(bounded)

    def _give_up(self, bounded: bool) -> None:
        limit = f"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS ({self._patience:g} s)"
        # An end that is bounded comes before a silence of full length.
        silent = self._silent(self._patience / 2 if bounded else self._patience)
        if stopped := self._stopped():
            text = f"{', '.join(map(self.describe, stopped))} (stopped by SIGSTOP, SIGTSTP or a debugger)"
        elif silent:
            text = f"the host of {silent}: {_SILENT}"
        elif bounded and not self._ended():
            text = "other ranks"
        else:
            return
        self.lost = True
        raise OperationTimeoutError(self.tell(f"gave up after {limit}, waiting for {text}"))

    def _leaders(self) -> list[int]:
        return list({card[2]: rank for rank, card in reversed(list(enumerate(self._cards)))}.values())

    def _silent(self, seconds: float) -> str:
        """The ranks of the hosts that have been silent so long."""
        leaders = self._others.silent(seconds) if self._others is not None else []
        systems = [self._cards[leader][2] for leader in leaders]
        return ", ".join(self.describe(rank) for rank, card in enumerate(self._cards) if card[2] in systems)

    def _failed(self) -> str:
        """Who has failed as MPI says, where it can tell."""
        try:
            failed = self._comm.Get_failed()
        except (self._mpi.Exception, NotImplementedError):
            return ""
        ranks = self._mpi.Group.Translate_ranks(failed, list(range(failed.size)), self._comm.group)
        how = "ended without a word, MPI says: it was killed by a signal, called os._exit, or its host is down"
        return f"{', '.join(map(self.describe, ranks))} {how}. {_SHUT_DOWN}" if ranks else ""

    def _stopped(self) -> list[int]:
        return [rank for rank in self._processes if _state(self._cards[rank][1]) in ("T", "t")]

    def _last_words(self) -> str:
        world, status = self._mpi.COMM_WORLD, self._mpi.Status()
        try:
            if not world.Iprobe(self._mpi.ANY_SOURCE, _TAG, status):
                return ""
            text = bytearray(status.Get_count(self._mpi.BYTE))
            world.Recv([text, self._mpi.BYTE], status.Get_source(), _TAG)
        except self._mpi.Exception:  # with fault tolerance: somebody is lost, which the request tells too
            return ""
        return text.decode(errors="replace")

    def _ended(self) -> str:
        for descriptor, _ in self._poll.poll(0):
            rank = next(rank for rank, process in self._processes.items() if process == descriptor)
            return f"{self.describe(rank)} ended without a word: it was killed by a signal or called os._exit. {_SHUT_DOWN}"
        return ""

    def _watch_this_host(self) -> None:
        for rank, (_, pid, system) in enumerate(self._cards):
            if rank == self._comm.rank or system != self._cards[self._comm.rank][2] or not hasattr(os, "pidfd_open"):
                continue
            try:
                self._processes[rank] = os.pidfd_open(pid)
            except OSError:  # an old kernel, or no descriptor left: then MPI alone tells
                continue
            self._poll.register(self._processes[rank], select.POLLIN)

    def close(self) -> None:
        """Watches nobody any more."""
        if self._others is not None:
            self._others.close()
        for descriptor in self._processes.values():
            os.close(descriptor)
        self._processes.clear()
        self._poll = select.poll()


def _state(pid: int) -> str:
    """As /proc says it: T is stopped, t stopped by a debugger; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _system() -> str:
    """Equal for processes that see each other's process ids."""
    boot = boot_id()
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        boot = ""
    return f"{boot} {namespace}" if boot else f"{socket.gethostname()} alone {os.getpid()}"
