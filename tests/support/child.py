"""The program that mpirun starts for each rank: it sends the rank's output to files, and becomes ``python <arguments>``, or the
stub of a warm interpreter.

Usage: python child.py FOLDER ARGUMENTS...

If WARM is set, a zygote (support/zygote.py) forks the process that runs the program. The stub, which mpirun has started, gives
that process its arguments, environment and output, passes on signals, and ends in the same way. If the stub is killed, the
zygote kills the forked process.
"""

import array
import contextlib
import io
import json
import os
import resource
import select
import signal
import socket
import sys

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
WARM = "HVDTEST_WARM"  # a variable of warm jobs: the sockets of their zygotes, separated by colons
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)
LIMITS = (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_STACK, resource.RLIMIT_AS, resource.RLIMIT_MEMLOCK)


def main() -> None:
    folder, arguments = sys.argv[1], sys.argv[2:]
    rank = next(os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    for descriptor, stream in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{folder}/rank{rank}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    if WARM in os.environ:
        zygotes = os.environ.pop(WARM).split(":")
        _hand_over(zygotes[int(rank) % len(zygotes)], arguments, f"{folder}/rank{rank}.pid")
    os.execv(sys.executable, [sys.executable, *arguments])


def _hand_over(zygote: str, arguments: list[str], pid_file: str) -> None:
    # Opened first: if mpirun has ended, os.getppid() names another process.
    mpirun = os.pidfd_open(os.getppid())
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(zygote)
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "limits": {limit: resource.getrlimit(limit) for limit in LIMITS},
        "umask": umask,
        "nice": os.nice(0),
        "ignored": [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN],
    }
    message = json.dumps(request).encode() + b"\n"
    sent = connection.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    if sent < len(message):  # the forked process may have ended already, and its zygote reads no more
        connection.sendall(message[sent:])
    answers = connection.makefile("rb", buffering=0)  # unbuffered, so that select sees the next answer
    pid = _answer(answers)["pid"]
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: _pass_on(pid, number))
    # The program may have begun already. Whoever sees this file can send it signals through this process.
    with open(f"{pid_file}.unfinished", "w") as file:
        file.write(str(pid))
    os.rename(f"{pid_file}.unfinished", pid_file)
    # In a fresh rank, MPI ends the process when mpirun has ended. This process has no MPI, so it watches mpirun itself.
    if connection in select.select([connection, mpirun], [], [])[0]:
        _end(_answer(answers)["status"])
    sys.exit("mpirun is gone")


def _pass_on(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the process has ended, and its zygote will report that
        os.kill(pid, number)


def _answer(answers: io.RawIOBase) -> dict[str, int]:
    """Reads an answer of the zygote."""
    text = answers.readline()
    if not text:
        sys.exit("the zygote of this rank has ended; its output is in the log beside its socket")
    return json.loads(text)


def _end(status: int) -> None:
    """Ends this process as the rank has ended: with its exit code, or by its signal."""
    if status >= 0:
        os._exit(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


if __name__ == "__main__":
    main()
