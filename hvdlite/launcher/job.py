"""Runs one job: starts mpirun, collects the ranks' output and exit codes, and ends all its processes."""

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdlite.errors import SystemFailure
from hvdlite.launcher import rank as rank_program
from hvdlite.launcher.folder import private_folder
from hvdlite.launcher.output import LauncherStream, RankExit, RankOutput, first_failure, last_output, parse_marked
from hvdlite.launcher.plan import LaunchPlan
from hvdlite.launcher.rank import ASKS, HEADER, Segments, at_parent_end, short_path

GRACE_SECONDS = 30.0  # the time in which programs have to end after the job is told to end
_TERM_SECONDS = 8.0  # the time in which mpirun has to end the job
# Open MPI 5's mpirun prints this text and starts no rank, if an mpirun with the same process id was killed and has left its
# folder behind. The failing mpirun removes that folder.
NOT_LAUNCHED = "listener thread failed to start"
_LAUNCHES = 3  # the largest number of starts of mpirun
_START_AGAIN = (
    "The other ranks could not continue without the lost one. Start the program again, on the hosts that are left: "
    "elastic.Job continues from its checkpoint with any other -n, and other programs from what they have saved"
)
_REST_SECONDS = 5.0  # the time in which ranks have to pass on their last output after mpirun has ended


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job.

    Attributes:
        status: the exit status for this process: the status of the rank that failed first, or mpirun's.
        failure: the rank that failed first, if any.
        words: that rank's last lines of output.
        interrupted: was the job told to end?
        problem: any other error; empty if there was none.
        lost: the ranks that a signal ended, if the job continued without them and succeeded.
    """

    status: int
    failure: RankExit | None = None
    words: tuple[str, ...] = ()
    interrupted: bool = False
    problem: str = ""
    lost: tuple[RankExit, ...] = ()


@dataclass
class _RankConnection:
    """The connection to the process that runs beside one rank of this host (`hvdlite.launcher.rank`).

    Attributes:
        connection: the socket.
        pidfd: a file descriptor that stands for that process; None if the kernel offers none.
        data: the bytes that have arrived of a message that is not complete yet.
        rank: the rank's number; None before the process has sent it.
        streams: cut the program's stdout (``o``) and stderr (``e``) into lines.
    """

    connection: socket.socket
    pidfd: int | None = None
    data: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    streams: dict[str, Segments] = field(default_factory=lambda: {"o": Segments(), "e": Segments()})


class LaunchedJob:
    """A job; call `run` once.

    Args:
        plan: how the ranks are started.
        command: the program of each rank, with its arguments.
        output: prints the ranks' lines.
        start_timeout: the time in seconds after which the job is ended if a rank has not started; None for no limit.
        grace: the time in seconds in which programs have to end after the job is told to end.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        command: Sequence[str],
        output: RankOutput,
        start_timeout: float | None = None,
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._plan, self._command, self._output = plan, command, output
        self._line, self._size = plan.line, plan.size
        self._start_timeout, self._grace = start_timeout, grace
        self._selector = selectors.DefaultSelector()
        self._peers: list[_RankConnection] = []
        self._started: dict[int, tuple[str, int]] = {}
        self._endings: dict[int, RankExit] = {}
        self._folder = ""
        self._asked_to_end: list[int] = []  # the signals that asked the job to end
        self._not_launched = False
        self._problem = ""

    def interrupt(self, number: int) -> None:
        """Asks the programs to end: by SIGINT if `number` is SIGINT, otherwise by SIGTERM. A second call kills the job.

        Signal handlers may call this method.
        """
        self._asked_to_end.append(number)

    def run(self) -> JobOutcome:
        """Runs the job to its end.

        Raises:
            SystemFailure: mpirun cannot be started.
            KeyboardInterrupt: the user pressed Ctrl-C. The job has ended then.
        """
        with private_folder("run") as self._folder:
            return self._run()

    def _run(self) -> JobOutcome:
        listener = socket.socket(socket.AF_UNIX)
        try:
            path = os.path.join(self._folder, "s")
            with short_path(path) as short:
                listener.bind(short)
            listener.listen(self._size + 16)
            self._selector.register(listener, selectors.EVENT_READ, listener)
            launches = 0
            while launches == 0 or (launches < _LAUNCHES and self._shall_launch_again()):
                launches += 1
                process = self._start(path)
                try:
                    self._follow(process)
                finally:
                    self._end(process)
        finally:
            self._output.close()
            listener.close()
            self._selector.close()
        return self._outcome(process.returncode)

    def _start(self, path: str) -> "subprocess.Popen[bytes]":
        program = [
            sys.executable,
            "-I",
            "-S",
            str(Path(rank_program.__file__).resolve()),
            path,
            "bind" if self._plan.bind else "none",
            str(self._grace),
        ]
        words = [*self._line.words, *program, *self._command]
        try:
            process = subprocess.Popen(
                words,
                preexec_fn=at_parent_end(signal.SIGTERM),
                env=self._plan.environ,
                stdin=subprocess.DEVNULL,  # ranks have no input either
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # the terminal sends Ctrl-C to this process, which passes it on once
            )
        except OSError as error:
            raise SystemFailure(f"{words[0]} cannot be started: {error.strerror}") from error
        for kind, stream in (("o", process.stdout), ("e", process.stderr)):
            assert stream is not None
            self._selector.register(stream, selectors.EVENT_READ, (kind, LauncherStream()))
        return process

    def _shall_launch_again(self) -> bool:
        """Has mpirun failed before it started any rank, for a reason that a second start avoids? If so, prints a line."""
        again = self._not_launched and not self._peers and not self._started and not self._asked_to_end
        self._not_launched = False
        if again:
            self._output.say(f"hvdlite run: {self._line.words[0]} has started no rank; hvdlite starts it again")
        return again

    def _follow(self, process: "subprocess.Popen[bytes]") -> None:
        """Handles messages and output until mpirun has ended and all output of ranks has arrived.

        After a request to end, this method also returns when all programs have ended, when their time is over, or when a second
        request comes.
        """
        began = time.monotonic()
        asked = ended = 0.0
        while True:
            self._collect(0.05)
            now = time.monotonic()
            if process.poll() is not None:
                ended = ended or now
                if not self._open() or now > ended + _REST_SECONDS:
                    return
            late = self._start_timeout is not None and not self._problem and len(self._started) < self._size
            if late and not ended and now > began + (self._start_timeout or 0.0):
                self._give_up_start()
            if self._asked_to_end and not asked:
                asked = now
                if not self._ask_programs(process):
                    process.terminate()
            all_ended = bool(self._started) and len(self._endings) == len(self._started)
            if asked and not ended and (all_ended or len(self._asked_to_end) > 1 or now > asked + self._grace + _TERM_SECONDS):
                return

    def _ask_programs(self, process: "subprocess.Popen[bytes]") -> bool:
        """Asks all programs to end. Returns false, and asks none, if some ranks have not started or cannot be reached."""
        some_elsewhere = len([peer for peer in self._peers if peer.rank is not None]) < self._size
        if len(self._started) < self._size or (some_elsewhere and not self._line.forwards):
            return False
        asked = signal.SIGINT if self._asked_to_end[0] == signal.SIGINT else signal.SIGTERM
        for peer in self._peers:
            with contextlib.suppress(OSError):  # the rank has ended
                peer.connection.send(bytes([asked]))
        if some_elsewhere:
            process.send_signal(ASKS[asked])
        return True

    def _give_up_start(self) -> None:
        missing = [rank for rank in range(self._size) if rank not in self._started]
        self._problem = (
            f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(map(str, missing))} had not started after "
            f"{self._start_timeout:g} seconds: the hosts may be unreachable, or busy (--start-timeout gives them more time)"
        )
        self.interrupt(signal.SIGTERM)

    def _open(self) -> bool:
        """Is any rank still connected, or mpirun's output open?"""
        return len(self._selector.get_map()) > 1

    def _collect(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            if isinstance(key.data, socket.socket):
                self._welcome(key.data)
            elif isinstance(key.data, _RankConnection):
                self._hear(key.data)
            else:
                kind, stream = key.data
                data = os.read(key.fd, 1 << 16)
                for text in stream.feed(data) if data else stream.finish():
                    self._from_launcher(kind, text)
                if not data:
                    self._selector.unregister(key.fileobj)

    def _welcome(self, listener: socket.socket) -> None:
        peer = _RankConnection(listener.accept()[0])
        credentials = peer.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        with contextlib.suppress(AttributeError, OSError):
            peer.pidfd = os.pidfd_open(int.from_bytes(credentials[:4], sys.byteorder))
        self._peers.append(peer)
        self._selector.register(peer.connection, selectors.EVENT_READ, peer)

    def _hear(self, peer: _RankConnection) -> None:
        try:
            data = peer.connection.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            if peer.rank is not None:
                for kind, segments in peer.streams.items():
                    for text, ending in segments.finish():
                        self._output.line(kind, peer.rank, text, ending)
            self._selector.unregister(peer.connection)
            peer.connection.close()
            return
        peer.data += data
        while len(peer.data) >= HEADER.size:
            kind, length = HEADER.unpack_from(peer.data)
            if len(peer.data) < HEADER.size + length:
                break
            payload = bytes(peer.data[HEADER.size : HEADER.size + length])
            del peer.data[: HEADER.size + length]
            self._message(peer, kind.decode(), payload)

    def _message(self, peer: _RankConnection, kind: str, payload: bytes) -> None:
        if kind in "hx":
            peer.rank = self._record(kind, payload.decode())
        elif peer.rank is not None:
            for text, ending in peer.streams[kind].feed(payload):
                self._output.line(kind, peer.rank, text, ending)

    def _from_launcher(self, kind: str, line: str) -> None:
        marked = parse_marked(line.rstrip("\n"))
        if marked is None:
            self._not_launched = self._not_launched or NOT_LAUNCHED in line
            self._output.launcher(kind, line)
        elif marked[0] in "hx":
            self._record(marked[0], marked[3])
        else:
            self._output.line(marked[0], marked[2], marked[3], marked[1])

    def _record(self, kind: str, text: str) -> int:
        said = json.loads(text)
        number = int(said["rank"])
        if kind == "h":
            self._started[number] = (said["host"], said["pid"])
            if len(self._started) == self._size:
                # No rank will connect any more, so the socket's folder is deleted now. Then no file remains if this process is
                # killed.
                shutil.rmtree(self._folder, ignore_errors=True)
        else:
            host, pid = self._started.get(number, ("?", 0))
            self._endings.setdefault(number, RankExit(number, host, pid, said["code"], said["stopped"]))
        return number

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        """Ends all processes of the job."""
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(1.0 if len(self._asked_to_end) > 1 else _TERM_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        for peer in self._peers:
            peer.connection.close()  # the processes beside the ranks of this host notice the closed connection
        for peer in self._peers:
            if peer.pidfd is not None:
                self._await_end(peer.pidfd)
                os.close(peer.pidfd)

    def _await_end(self, pidfd: int) -> None:
        """Waits until the process beside a rank has ended its program and itself; kills that process if it takes too long."""
        with selectors.DefaultSelector() as selector, contextlib.suppress(ProcessLookupError):
            selector.register(pidfd, selectors.EVENT_READ)
            if not selector.select(_REST_SECONDS):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _outcome(self, launcher_status: int) -> JobOutcome:
        status = launcher_status if launcher_status >= 0 else 128 - launcher_status
        interrupted = bool(self._asked_to_end)
        lost = tuple(ending for ending in self._endings.values() if ending.code < 0)
        others = [ending for ending in self._endings.values() if ending.code >= 0]
        if self._line.elastic and lost and others and not interrupted and not any(ending.code for ending in others):
            return JobOutcome(0, lost=lost)
        failure = first_failure(self._endings.values(), self._started, lambda rank: self._output.tail(rank, "e"))
        if self._problem:
            return JobOutcome(status or 1, interrupted=True, problem=self._problem)
        if failure is not None:
            words = last_output(self._output.tail(failure.rank, "e"), self._output.tail(failure.rank, "o"))
            problem = _START_AGAIN if self._line.elastic and failure.code < 0 and not interrupted else ""
            return JobOutcome(failure.status, failure, tuple(words), interrupted, problem)
        if status and not self._started:
            problem = f"{self._line.words[0]} ended with exit code {status} before it had started a rank"
            remedy = f": {self._line.remedy}" if self._line.remedy else ""
            return JobOutcome(status, interrupted=interrupted, problem=problem + remedy)
        silent = [rank for rank in self._started if rank not in self._endings]
        if silent and not interrupted:
            place = ", ".join(f"{rank} (host {self._started[rank][0]})" for rank in sorted(silent))
            problem = f"no message reported the end of rank {place}: the host may be lost"
            return JobOutcome(status or 1, problem=f"{problem}. {_START_AGAIN}" if self._line.elastic else problem)
        return JobOutcome(status, interrupted=interrupted)


@contextlib.contextmanager
def told_to_end(
    job: LaunchedJob, numbers: Sequence[int] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
) -> Iterator[list[int]]:
    """A with statement in which one of the signals `numbers` to this process asks the job to end. Yields the list of received
    signals.

    Signals that are ignored stay ignored (nohup and a shell's ``&`` ignore some). In other threads than the main thread it does
    nothing, because Python handles signals only in the main thread.
    """
    received: list[int] = []

    def handler(number: int, frame: object) -> None:
        received.append(number)
        job.interrupt(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield received
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
