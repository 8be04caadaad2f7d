"""Runs beside each rank: starts the rank's program, sends the program's output to the launcher, and reports the program's end.

mpirun starts this file by its path, in an isolated Python (``python -I -S rank.py SOCKET bind|none GRACE command...``), so the
file imports only the standard library. On the launcher's host, this process sends output and messages through the launcher's
socket. If the launcher ends, the socket is closed. On other hosts this process prints each line with a mark, and mpirun passes
the line on.

When the launcher is told to end, it asks this process to end the program: on the launcher's host by a signal's number on the
socket, on other hosts by a signal that mpirun forwards (`ASKS`). This process sends the program the signal, and kills the
program after GRACE seconds. After that request this process runs on, even if the program has ended, until the launcher closes
the socket or mpirun ends this process. If this process ended earlier, mpirun would end other ranks that still save their state.
"""

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# The header of a message on the socket: its kind (h: hello, o: stdout, e: stderr, x: exit), and the length of its payload.
HEADER = struct.Struct("!cI")
# For each signal that asks the program to end, the signal that Open MPI's mpirun forwards instead. The program gets the
# forwarded signal as well, and ignores that signal unless the program has a handler.
ASKS = {signal.SIGINT: signal.SIGWINCH, signal.SIGTERM: signal.SIGURG}
MARK = "\x1e"  # a line that goes through mpirun has the form: MARK kind ending rank MARK text
_ENDINGS = {"\n": "n", "\r": "r", "": "u"}
_LONGEST = 1 << 16  # bytes: longer text is passed on without waiting for the end of its line
_GRACE_SECONDS = 3.0  # from SIGTERM to SIGKILL, if the rank ends because mpirun or the launcher has ended
_LAST_OUTPUT_SECONDS = 1.0  # how long output is read after the program's end, if a child of the program keeps a pipe open

_RANK = ("OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


class Segments:
    """Cuts a stream of bytes into lines. A carriage return ends a line as well, so that progress bars are shown at once."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[str, str]]:
        r"""Takes bytes and returns the lines that are complete, each with its ending: ``\n``, ``\r``, or nothing if the line is
        too long.
        """
        data = self._rest + data
        found = []
        while True:
            end = re.search(rb"\r?\n|\r(?=[^\n])", data)  # after an \r at the end of the data, a \n may follow
            if end is None:
                break
            ending = "\n" if end[0].endswith(b"\n") else "\r"
            if end.start() or ending == "\n":
                found.append((data[: end.start()].decode(errors="replace"), ending))
            data = data[end.end() :]
        if len(data) > _LONGEST:
            found.append((data.decode(errors="replace"), ""))
            data = b""
        self._rest = data
        return found

    def finish(self) -> list[tuple[str, str]]:
        """Call it at the end of the stream. Returns the text after the last complete line; [] if there is none."""
        rest, self._rest = self._rest.rstrip(b"\r"), b""
        return [(rest.decode(errors="replace"), "\n")] if rest else []


def _first_of(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    """The number in the first of the variables `names` that has a number; None if none has."""
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), None)


def rank_of(environ: Mapping[str, str]) -> int:
    """This process's rank, from the variables of its launcher; 0 without a launcher."""
    return _first_of(environ, _RANK) or 0


def local_place(environ: Mapping[str, str]) -> tuple[int, int]:
    """This process's local rank and local size, from the variables of its launcher; ``(0, 0)`` if they are not set."""
    rank, size = _first_of(environ, _LOCAL_RANK), _first_of(environ, _LOCAL_SIZE)
    return (rank, size) if rank is not None and size else (0, 0)


# --- cores --------------------------------------------------------------------------------------------------------------


def cores(allowed: Sequence[int], folder: str = "/sys/devices/system") -> list[list[int]]:
    """The physical cores, each as the list of its processors. In the list, cores of one socket and NUMA node are neighbours.

    Args:
        allowed: the processors that this process may use.
        folder: the folder where the kernel describes the machine.
    """
    nodes: dict[int, int] = {}
    for node in Path(folder, "node").glob("node[0-9]*/cpulist"):
        for cpu in _numbers(node):
            nodes[cpu] = int(node.parent.name.removeprefix("node"))
    found: dict[tuple[int, int, int], list[int]] = {}
    for cpu in sorted(allowed):
        topology = Path(folder, "cpu", f"cpu{cpu}", "topology")
        package = next(iter(_numbers(topology / "physical_package_id")), 0)
        core = next(iter(_numbers(topology / "thread_siblings_list")), cpu)
        found.setdefault((package, nodes.get(cpu, 0), core), []).append(cpu)
    return [found[key] for key in sorted(found)]


def _numbers(file: Path) -> list[int]:
    """The numbers in a file with a list such as ``0-3,8``; an empty list if the file cannot be read."""
    try:
        parts = [part.partition("-") for part in file.read_text().strip().split(",") if part]
        return [number for first, _, last in parts for number in range(int(first), int(last or first) + 1)]
    except (OSError, ValueError):
        return []


def core_share(available: Sequence[Sequence[int]], local_rank: int, local_size: int) -> set[int]:
    """The processors of one rank, if each rank of the host gets the same number of cores.

    The set is empty if a rank would get less than two cores, because then its program and its helper threads would share one
    core.

    Args:
        available: the host's cores, each as the list of its processors.
        local_rank: the rank's number among the ranks of the host.
        local_size: the number of ranks on the host.
    """
    each = len(available) // local_size
    if each < 2:
        return set()
    return {cpu for core in available[local_rank * each : (local_rank + 1) * each] for cpu in core}


def _take_place(environ: dict[str, str], bind: bool) -> None:
    """Binds this process, and so its children, to its share of the cores. If it is not bound, limits the threads of OpenMP."""
    local_rank, local_size = local_place(environ)
    if not local_size:
        return
    available = cores(sorted(os.sched_getaffinity(0)))
    share = core_share(available, local_rank, local_size) if bind else set()
    if share:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, share)
            return
    if local_size > 1:
        environ.setdefault("OMP_NUM_THREADS", str(max(1, len(available) // local_size)))


# --- to the launcher ----------------------------------------------------------------------------------------------------


class _Socket:
    """Sends messages and output through the launcher's socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection: socket.socket | None = connection

    def send(self, kind: str, data: bytes) -> None:
        if self.connection is not None:
            try:
                self.connection.sendall(HEADER.pack(kind.encode(), len(data)) + data)
            except OSError:  # the launcher has ended; _Supervisor notices that
                self.connection = None

    def output(self, kind: str, data: bytes) -> None:
        if data:
            self.send(kind, data)


class _Lines:
    """Writes marked lines for mpirun to pass on, each in one write, so that the lines of several ranks do not mix."""

    connection = None

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._streams = {"o": Segments(), "e": Segments()}

    def send(self, kind: str, data: bytes) -> None:
        self._write(kind, "n", data.decode())

    def output(self, kind: str, data: bytes) -> None:
        segments = self._streams[kind]
        for text, ending in segments.feed(data) if data else segments.finish():
            self._write(kind, _ENDINGS[ending], text)

    def _write(self, kind: str, ending: str, text: str) -> None:
        line = f"{MARK}{kind}{ending}{self._rank}{MARK}{text}\n".encode()
        with contextlib.suppress(OSError):
            while line:
                line = line[os.write(1 if kind == "o" else 2, line) :]


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """A with statement in which a file has a short path, too, because a socket's path may have at most 107 bytes."""
    folder = os.open(os.path.dirname(path), os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _connect(path: str, rank: int) -> "_Socket | _Lines":
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short_path(path) as short:
            connection.connect(short)
    except OSError:  # the launcher is on another host
        connection.close()
        return _Lines(rank)
    return _Socket(connection)


# --- the program --------------------------------------------------------------------------------------------------------


def at_parent_end(number: int) -> Callable[[], object]:
    """A function that a new process runs before its program. It asks the kernel to send the signal when the parent ends."""
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda: None
    return lambda: prctl(1, number)  # PR_SET_PDEATHSIG


class _Supervisor:
    """Runs one program to its end."""

    def __init__(self, channel: "_Socket | _Lines", command: Sequence[str], environ: Mapping[str, str], grace: float) -> None:
        self._channel = channel
        self._grace = grace
        self._is_remote = channel.connection is None
        self.stopped = False  # was the program told to end?
        self._kills_at = 0.0
        self._held = False  # has the launcher asked for the end, so that this process must wait for the launcher?
        self._killed = False
        self._parent = os.getppid()
        self._wakeup, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, *ASKS.values()):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, for example, ignores SIGHUP
                signal.signal(number, self._signalled)
        self._signals: list[int] = []
        self.process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,  # Open MPI 5.0's mpirun gives rank 0 a pipe that never ends
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            close_fds=False,  # MPICH's mpirun exchanges messages with the rank through an inherited file
            preexec_fn=at_parent_end(signal.SIGKILL),
        )

    def _signalled(self, number: int, frame: Any) -> None:
        self._signals.append(number)

    def run(self) -> int:
        """Waits until the program has ended; returns its exit code, or -n if signal n has ended it."""
        with selectors.DefaultSelector() as selector:
            for kind, stream in (("o", self.process.stdout), ("e", self.process.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, kind)
            self._register(selector)
            ended = 0.0
            while True:
                for key, _ in selector.select(0.1 if ended or self.stopped else 1.0):
                    self._handle(selector, key)
                open_streams = [key for key in selector.get_map().values() if key.data in ("o", "e")]
                if not ended and self.process.poll() is not None:
                    ended = time.monotonic()
                if ended and (not open_streams or time.monotonic() > ended + _LAST_OUTPUT_SECONDS):
                    return self.process.returncode
                self._attend_to_stopping()

    def await_launcher(self) -> None:
        """After the launcher's request to end: waits until the launcher closes the socket or mpirun ends this process, or until
        the time in which a program has to end is over.
        """
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while self._held and time.monotonic() < self._kills_at + _LAST_OUTPUT_SECONDS:
                for key, _ in selector.select(0.1):
                    self._handle(selector, key)
                self._attend_to_stopping()

    def _register(self, selector: selectors.BaseSelector) -> None:
        selector.register(self._wakeup, selectors.EVENT_READ, "wake")
        if self._channel.connection is not None:
            selector.register(self._channel.connection, selectors.EVENT_READ, "launcher")

    def _handle(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        if key.data == "wake":
            os.read(key.fd, 512)
        elif key.data == "launcher":
            order = os.read(key.fd, 1)
            if order:
                self._stop(order[0], self._grace, held=True)
                return
            selector.unregister(key.fileobj)  # the launcher has ended
            self._channel.connection = None
            self._held = False
            self._stop(signal.SIGTERM, _GRACE_SECONDS)
        else:
            data = os.read(key.fd, 1 << 16)
            self._channel.output(key.data, data)
            if not data:
                selector.unregister(key.fileobj)

    def _attend_to_stopping(self) -> None:
        numbers, self._signals = [number for number in self._signals if number != signal.SIGCHLD], []
        for asked, forwarded in ASKS.items():
            if forwarded in numbers and self._is_remote:
                self._stop(asked, self._grace, held=True)
        numbers = [number for number in numbers if number not in ASKS.values()]
        if numbers:
            # If this process leads a process group, the whole group has got the signal. So the program has got it, too: send 0.
            self._stop(numbers[0] if os.getpgid(0) != os.getpid() else 0, _GRACE_SECONDS)
        if os.getppid() != self._parent:
            self._held = False
            self._stop(signal.SIGTERM, _GRACE_SECONDS)
        if self.stopped and not self._killed and time.monotonic() > self._kills_at:
            self._killed = True
            self._send(signal.SIGKILL)

    def _stop(self, number: int, grace: float, held: bool = False) -> None:
        """Sends the program a signal (0, which does nothing, if it has got one already), and has it killed after `grace`
        seconds. Later calls only set whether this process waits for the launcher (`held`).
        """
        self._held = held
        if not self.stopped:
            self.stopped = True
            self._kills_at = time.monotonic() + grace
            self._send(number)

    def _send(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)


def _end_as(code: int) -> None:
    """Ends this process as the program has ended: with the same exit code, or by the same signal."""
    if code < 0:
        with contextlib.suppress(Exception):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def main(arguments: Sequence[str]) -> None:
    """Starts the program, waits for its end, and ends this process in the same way.

    Args:
        arguments: the path of the launcher's socket, ``bind`` or ``none``, the seconds that the program gets to end after it
            is told to, and the program's command line.
    """
    path, bind, grace, *command = arguments
    environ = dict(os.environ)
    environ.setdefault("PYTHONUNBUFFERED", "1")  # Python would keep output for a pipe in a buffer, which a killed rank loses
    rank = rank_of(environ)
    host = socket.gethostname()
    channel = _connect(path, rank)
    _take_place(environ, bind == "bind")
    try:
        supervisor = _Supervisor(channel, command, environ, float(grace))
    except OSError as error:
        channel.send("h", json.dumps({"rank": rank, "host": host, "pid": 0}).encode())
        channel.output("e", f"{command[0]} cannot be started: {error.strerror}\n".encode())
        channel.send("x", json.dumps({"rank": rank, "code": 127, "stopped": False}).encode())
        os._exit(127)
    channel.send("h", json.dumps({"rank": rank, "host": host, "pid": supervisor.process.pid}).encode())
    code = supervisor.run()
    for kind in "oe":
        channel.output(kind, b"")
    channel.send("x", json.dumps({"rank": rank, "code": code, "stopped": supervisor.stopped}).encode())
    supervisor.await_launcher()
    if supervisor.stopped and os.getpgid(0) == os.getpid():  # ends the processes that the program has started and not ended
        os.killpg(0, signal.SIGKILL)
    _end_as(code)


if __name__ == "__main__":
    main(sys.argv[1:])
