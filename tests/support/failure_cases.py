"""The failures that tests produce: a rank ends at a place of a job, under a launcher. docs/failures.md has the same cases.

A case is a job of three ranks on one host, or of three or four ranks on three hosts. Rank 1 prints the time and fails. The log
lines of the other ranks have the time at which they were written.
"""

import re
import tempfile
import textwrap
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from support.hosts import EmulatedHosts, emulated_hosts
from support.job import Job, JobResult

__all__ = ["CASES", "CULPRIT", "MODES", "Case", "Outcome", "run_case", "run_cases"]

RANKS, CULPRIT = 3, 1
AT_ONCE = 4  # the number of jobs that run at the same time; jobs mostly sleep
DEADLINE, ENDED = 240.0, 60.0  # they only turn a hang, and a process that does not end, into a failure
MODES = ("mpirun", "ulfm", "elastic")
# The limits that end a rank that hangs, in seconds.
STALL = {"HVDLITE_STALL_CHECK_TIME_SECONDS": "1", "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "3"}

PROGRAM = """
    import os, signal, sys, threading, time
    import numpy as np
    import hvdlite as hvd
    from hvdlite import elastic, startup

    ending, place, mode = sys.argv[1:]

    def fail():
        print(f"failed {time.time():.6f}", flush=True)
        if ending == "raise":
            raise ValueError("bad batch 17")
        if ending in ("host lost", "link cut"):
            time.sleep(600)  # the test ends the host or the link
        if ending == "exit 3":
            sys.exit(3)
        if ending == "exit 0":
            sys.exit(0)
        if ending == "os._exit 4":
            os._exit(4)
        os.kill(os.getpid(), {"SIGKILL": signal.SIGKILL, "SIGSEGV": signal.SIGSEGV, "SIGSTOP": signal.SIGSTOP}[ending])

    from mpi4py import MPI
    culprit = MPI.COMM_WORLD.rank == 1
    print(f"pid {os.getpid()} host {os.uname().nodename}", flush=True)
    if place == "init" and culprit:
        startup.agree = lambda *_: (time.sleep(0.3), fail())

    def work():
        if place == "negotiation":
            if culprit:
                time.sleep(0.3)  # most likely the others already wait; if not, they learn it when they come
                fail()
            hvd.allreduce(np.ones(4), name="gradient")
        if place == "collective":
            gradients = [np.full(1 << 20, hvd.rank() + i, np.float32) for i in range(16)]
            handles = [hvd.allreduce_async(each, name=f"gradient.{i}") for i, each in enumerate(gradients)]
            if culprit:
                hvd.synchronize(handles[0])
                fail()
            for handle in handles:
                hvd.synchronize(handle)
            hvd.allreduce(np.ones(4), name="next")
        if place == "computing":
            if culprit:
                time.sleep(0.1)
                fail()
            end = time.monotonic() + 1.0
            while time.monotonic() < end:  # holds the GIL
                sum(range(100_000))
            hvd.allreduce(np.ones(4), name="next")

    def train(state):
        if state.begun:
            hvd.allreduce(np.ones(4), name="after")
            print(f"went on {time.time():.6f} with {hvd.size()} ranks", flush=True)
        state.begun = True
        state.save()
        work()

    try:
        hvd.init()
        for step in range(3):
            hvd.allreduce(np.full(4, hvd.rank() + step), name="warmup")
        hvd.barrier()
        if mode == "elastic":
            elastic.run(train)(elastic.ObjectState(hvd.broadcast_object, hvd.rank, begun=False))
        else:
            work()
        if place == "shutdown":
            if culprit:
                time.sleep(0.3)
                fail()
            hvd.shutdown()
            print(f"shut down {time.time():.6f}", flush=True)
    except (hvd.HorovodInternalError, hvd.UnsupportedError) as error:
        print(f"raised {time.time():.6f} {type(error).__name__}: {error}", flush=True)
        raise
"""


# Rank 1 is on the second of three hosts.
_ALONE, _NEIGHBOURS = (1, 1, 1), (1, 2, 1)
_WHERE = {(): "", _ALONE: "-alone", _NEIGHBOURS: "-neighbours"}


@dataclass(frozen=True)
class Case:
    """A row of the table, and its column.

    Attributes:
        ending: how rank 1 ends.
        place: what the other ranks do at that time.
        mode: ``mpirun``; ``ulfm`` for ``mpirun --with-ft ulfm``; ``elastic`` for a function of `hvdlite.elastic.run` under it.
        hosts: the number of ranks on each host; () for one host.
        slow: does only `make test-all` run it?
    """

    ending: str
    place: str
    mode: str
    hosts: tuple[int, ...] = ()
    slow: bool = False

    def __str__(self) -> str:
        return f"{self.ending}-{self.place}-{self.mode}{_WHERE[self.hosts]}".replace(" ", "_")

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return sum(self.hosts) or RANKS

    @property
    def is_a_hang(self) -> bool:
        """Does only the stall limit end the job? It does if no process notices that a rank has ended or does not answer."""
        untold = self.mode == "elastic" and self.ending == "os._exit 4"  # MPI does not report it
        return untold or self.ending == "SIGSTOP" or (self.ending, self.place) == ("link cut", "shutdown")

    @property
    def goes_on(self) -> bool:
        """Do the other ranks continue their training?"""
        trains = self.place in ("negotiation", "collective", "computing")
        return self.mode == "elastic" and trains and self.ending in ("SIGKILL", "SIGSEGV")

    @property
    def survivors(self) -> tuple[int, ...]:
        """All ranks but rank 1 and, if its host is lost, the other ranks of that host."""
        gone = self.hosts[CULPRIT] if self.ending in ("host lost", "link cut") else 1
        return (0, *range(CULPRIT + gone, self.ranks))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case. All seconds count from the failure.

    Attributes:
        case: the case.
        job: the output of its ranks, and mpirun's exit code.
        said: for each survivor that logged the failure, the seconds and the text.
        raised: for each survivor in which a call raised, the seconds and the error.
        went_on: for each survivor that continued elastic training, the seconds and the number of ranks.
        records: the survivors whose log has the flight recorder.
        orphans: the ids of processes of the job that had not ended after mpirun had ended.
    """

    case: Case
    job: JobResult
    said: dict[int, tuple[float, str]] = field(default_factory=dict)
    raised: dict[int, tuple[float, str]] = field(default_factory=dict)
    went_on: dict[int, tuple[float, int]] = field(default_factory=dict)
    records: tuple[int, ...] = ()
    orphans: tuple[int, ...] = ()

    def report(self) -> str:
        """The whole outcome, for the message of an assertion."""
        found = f"said {self.said}, raised {self.raised}, went on {self.went_on}, left running: {self.orphans}"
        return f"{self.case}: {found}\n{self.job.report()}"


_ENDINGS = ("raise", "exit 3", "exit 0", "os._exit 4", "SIGKILL", "SIGSEGV", "SIGSTOP")
_PLACES = ("init", "negotiation", "collective", "computing", "shutdown")
_ACROSS = (
    *(("raise", place, _ALONE) for place in _PLACES),
    ("exit 3", "negotiation", _ALONE),
    ("os._exit 4", "negotiation", _ALONE),
    *(("SIGKILL", place, _ALONE) for place in _PLACES),
    ("SIGKILL", "negotiation", _NEIGHBOURS),
    *(("SIGSTOP", place, _ALONE) for place in _PLACES),
    *(("host lost", place, _NEIGHBOURS) for place in _PLACES),
    *(("link cut", place, _NEIGHBOURS) for place in _PLACES),
)
# Every run of the tests has each ending once under each launcher, and the cases in which no engine exists and other code runs.
# All other cases are tested in virtual time (tests/sim, endings), and in real jobs by `make test-all`.
_WITHOUT_AN_ENGINE = {
    "init": {("raise", "ulfm"), ("exit 3", "mpirun"), ("SIGSTOP", "mpirun"), ("SIGKILL", "mpirun"), ("SIGKILL", "ulfm")},
    "shutdown": {("raise", "mpirun"), ("exit 3", "ulfm"), ("SIGSTOP", "ulfm"), ("SIGKILL", "mpirun"), ("SIGKILL", "ulfm")},
}
_ACROSS_WITHOUT_AN_ENGINE = {
    "init": {("raise", "mpirun"), ("link cut", "ulfm")},
    "shutdown": {("SIGKILL", "mpirun"), ("SIGKILL", "ulfm")},
}


def _usual(ending: str, place: str, mode: str, hosts: tuple[int, ...] = ()) -> bool:
    if mode == "elastic":  # tests/fault/test_elastic_recovery.py tests this mode
        return False
    if place == "negotiation":
        return not hosts or (ending, hosts) in (("SIGKILL", _ALONE), ("host lost", _NEIGHBOURS), ("link cut", _NEIGHBOURS))
    return (ending, mode) in (_ACROSS_WITHOUT_AN_ENGINE if hosts else _WITHOUT_AN_ENGINE).get(place, ())


CASES = (
    *(Case(e, place, mode, slow=not _usual(e, place, mode)) for e in _ENDINGS for place in _PLACES for mode in MODES),
    *(
        Case(ending, place, mode, hosts, slow=not _usual(ending, place, mode, hosts))
        for ending, place, hosts in _ACROSS
        for mode in MODES
    ),
)

_STAMP = r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) hvdlite ERROR \[\w+ rank \d+/\d+\] "


def run_case(case: Case, timeout: float = DEADLINE) -> Outcome:
    """Runs a case, and returns its outcome."""
    if not case.hosts:
        return _run(case, None, timeout)
    with emulated_hosts(len(case.hosts)) as hosts:  # new hosts for each case, because a case may end a host
        return _run(case, hosts, timeout)


def _run(case: Case, hosts: EmulatedHosts | None, timeout: float) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="hvdlite-job-") as name:
        folder = Path(name)
        (folder / "script.py").write_text(textwrap.dedent(PROGRAM))
        options = list(hosts.placement(case.hosts)[1]) if hosts is not None else []
        if case.mode != "mpirun":  # after a death, these collectives of Open MPI 5.0 return wrong data across hosts
            options += ["--with-ft", "ulfm", "--mca", "coll", "^han,adapt,hcoll,portals4"]
        environment = {"HVDLITE_LOG_TIMESTAMPS": "1", **(STALL if case.is_a_hang else {})}
        program = [str(folder / "script.py"), case.ending, case.place, case.mode]
        job = Job(program, case.ranks, folder, environment, options, hosts)
        ended = False
        orphans: list[int] = []
        try:
            if hosts is not None and case.ending in ("host lost", "link cut"):
                job.wait(timeout, until=lambda: "failed" in job.result().stdout.get(CULPRIT, ""))
                (hosts.kill if case.ending == "host lost" else hosts.cut)(CULPRIT)
            if case.ending == "link cut":
                # mpirun waits for its daemon on that host.
                ended = job.wait(timeout, until=lambda: _all_told(case, job.result()))
            else:
                ended = job.wait(timeout)
            patience = time.monotonic() + ENDED
            while ended and case.ending != "link cut" and (orphans := job.running()) and time.monotonic() < patience:
                time.sleep(0.05)  # the last processes may be ending now
        finally:
            result = job.end(timed_out=not ended)
    return _read(case, result, tuple(orphans))


def run_cases(cases: Iterable[Case]) -> dict[Case, Outcome]:
    """Runs cases, several at the same time."""
    cases = sorted(cases, key=lambda case: case.ending != "link cut")  # the longest cases first
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(cases, pool.map(run_case, cases), strict=True))


def _all_told(case: Case, job: JobResult) -> bool:
    told = "at the end of the program" if case.place == "shutdown" else "raised"
    return all(told in job.stdout.get(rank, "") + job.stderr.get(rank, "") for rank in case.survivors)


def _read(case: Case, job: JobResult, orphans: tuple[int, ...]) -> Outcome:
    moment = re.search(r"^failed ([\d.]+)$", job.stdout.get(CULPRIT, ""), re.MULTILINE)
    failed = float(moment[1]) if moment else float("nan")
    said, raised, went_on, records = {}, {}, {}, []
    for rank in case.survivors:
        log = re.search(_STAMP + "(.*Horovod has been shut down.*)", job.stderr.get(rank, ""), re.MULTILINE)
        if log:
            said[rank] = (datetime.strptime(log[1], "%Y-%m-%d %H:%M:%S.%f").timestamp() - failed, log[2])
        error = re.search(r"^raised ([\d.]+) (.*)", job.stdout.get(rank, ""), re.MULTILINE)
        if error:
            raised[rank] = (float(error[1]) - failed, error[2])
        later = re.search(r"^went on ([\d.]+) with (\d+) ranks", job.stdout.get(rank, ""), re.MULTILINE)
        if later:
            went_on[rank] = (float(later[1]) - failed, int(later[2]))
        if "last operations of this rank" in job.stderr.get(rank, ""):
            records.append(rank)
    return Outcome(case, job, said, raised, went_on, tuple(records), orphans)
