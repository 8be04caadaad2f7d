"""Signs of life between the hosts of a job while no engine gives them: in `init`, and from its end on until MPI ends.

The first ranks of the hosts, their leaders, send each other empty messages now and then, each from a thread of its own, since
its program may compute. Who is silent is asked by whoever waits (peers.py), and has been heard before: there is none of this
before all processes know each other. csrc/engine/membership/heartbeat.h is the same between engines, which do not depend on
the GIL.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["OtherHosts"]

# Signs travel on the communicator of peers.py under this tag.
_TAG = 31_478
_LONGEST_INTERVAL = 2.0


class OtherHosts:
    """The leaders of the other hosts. Thread: its own, which is the only one that sends and receives; `silent` in any.

    Takes an MPI with thread level multiple.

    Args:
        MPI: the module ``mpi4py.MPI``.
        comm: the communicator of peers.py, which has nothing else from point to point.
        leaders: the ranks of the leaders of the other hosts.
        limit: the shortest silence, in seconds, that will ever matter.
    """

    def __init__(self, MPI: Any, comm: Any, leaders: Sequence[int], limit: float) -> None:  # noqa: N803 - the module's own name
        self._mpi, self._comm = MPI, comm
        self._interval = min(_LONGEST_INTERVAL, limit / 5)
        self._looked = time.monotonic()
        self._heard = dict.fromkeys(leaders, self._looked)
        self._sent = dict.fromkeys(leaders, MPI.REQUEST_NULL)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        # MPI asks for the attributes of this communicator before it ends, whoever ends it.
        before_end = MPI.Comm.Create_keyval(delete_fn=lambda *_: self.close())
        MPI.COMM_SELF.Set_attr(before_end, self)
        self._thread = threading.Thread(target=self._keep_in_touch, name="hvdlite-hosts", daemon=True)
        self._thread.start()

    def silent(self, seconds: float) -> list[int]:
        """The leaders that have not been heard for so long while this process looked."""
        with self._lock:
            return [leader for leader, heard in self._heard.items() if self._looked - heard > seconds]

    def close(self) -> None:
        """Sends nothing any more, and knows nobody."""
        self._ended.set()
        self._thread.join()
        with self._lock:
            self._heard.clear()

    def _keep_in_touch(self) -> None:
        try:
            while not self._ended.wait(self._interval / 2):
                self._look(time.monotonic())
                for leader, request in self._sent.items():
                    if request.Test():  # else the last one is still under way, for nobody takes it
                        self._sent[leader] = self._comm.Isend([b"", self._mpi.BYTE], leader, _TAG)
        except self._mpi.Exception:  # with fault tolerance: somebody is lost, which those who wait are told as well
            return

    def _look(self, now: float) -> None:
        status = self._mpi.Status()
        came = set()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, _TAG, status):
            self._comm.Recv([bytearray(0), self._mpi.BYTE], status.Get_source(), _TAG)
            came.add(status.Get_source())
        with self._lock:
            away = now - self._looked
            for leader, heard in self._heard.items():
                # Whoever was itself away (stopped, asleep, or in code that keeps the GIL) accuses nobody of that time.
                self._heard[leader] = now if leader in came else heard + (away if away > 2 * self._interval else 0.0)
            self._looked = now
