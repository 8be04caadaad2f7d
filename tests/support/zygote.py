"""A process that has imported the frameworks and forks a rank for each stub that asks for one (support/child.py).

Usage: python zygote.py SOCKET OWNER MODULES. OWNER is the id of the process with which the zygote ends; MODULES is a list with
commas.

Importing torch or TensorFlow takes seconds, and the tests start hundreds of ranks. So a forked child becomes the rank: it gets
from the stub all that mpirun gave the stub (arguments, environment, folder, output, affinity, limits, umask, priority), and
runs the program as the interpreter would. It differs from a fresh process only in its parent, in the imported modules, and in
its end, at which it does not undo the zygote's imports; unit/test_warm.py checks all else. Most variables act when Python
starts or at imports, so they belong to the zygote: support/warm.py starts a zygote for each set of them.

The zygote has one thread; with more threads, it could fork a process with locks that are never released. It watches each stub
and each child. If a stub ends, the zygote kills its child, as a killed rank ends. If a child ends, the zygote reports that to
its stub.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import resource
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
import weakref
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
STREAMS = 3
# The parent of a process may let it ignore these signals: nohup the first, and a shell the other two for background processes.
INHERITED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
MUST_NOT_FORK = 77  # the exit code if imports have left threads
END = "end"  # the request of support/warm.py that ends the zygote


def main() -> None:
    imported: list[types.ModuleType] = []
    atexit.register(_keep, imported)  # before the imports, so that Python calls it after the functions that they register
    path, owner, modules = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
    # Ctrl-C must go only to pytest, which ends its jobs. A new session is not used for that, because Linux divides the
    # processor between sessions, and a job's ranks come from two zygotes.
    os.setpgid(0, 0)
    if not Path(f"/proc/{owner}").exists():
        raise SystemExit("the pytest that has started this process has ended")
    sys.path[0] = __file__  # the folder of this file would hide other modules; `_run` puts the program's folder here
    for module in modules:
        importlib.import_module(module)
    for finalizer in list(weakref.finalize._registry):  # torch would take back each operator that it has declared
        finalizer.atexit = False
    imported += [module for name, module in sys.modules.items() if name.partition(".")[0] not in sys.stdlib_module_names]
    _end_without_destructors()
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        names = (Path(f"/proc/self/task/{thread}/comm").read_text().strip() for thread in os.listdir("/proc/self/task"))
        print(f"importing {', '.join(modules)} leaves {threads} threads ({', '.join(names)}), and such a process must not fork")
        raise SystemExit(MUST_NOT_FORK)
    gc.collect()
    gc.freeze()  # children share memory that they never write to
    server = Server(path, owner)
    request = server.serve()
    if request is not None:
        del server
        become(request)
    else:
        path.with_name(f"{os.getpid()}.seconds").write_text(str(sum(os.times()[:4])))


class Server:
    """Forks a child for each request. In the child, `serve` returns this request."""

    def __init__(self, path: Path, owner: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        unfinished = Path(f"{path}.unfinished")
        self._listener.bind(str(unfinished))
        self._listener.listen(64)
        unfinished.rename(path)  # in one step, so that a process that sees the socket can connect to it
        self._owner = os.pidfd_open(owner)
        self._over = False
        self._asker: socket.socket | None = None  # its process waits for the end of the zygote
        self._children: dict[int, tuple[int, socket.socket]] = {}  # for each child's descriptor, its process id and its stub
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._owner, selectors.EVENT_READ, self._end)

    def serve(self) -> dict[str, Any] | None:
        """Serves requests. Returns the request in each forked child, and None in the zygote at its end."""
        while not self._over:
            key, _ = self._selector.select()[0]  # one event at a time, because it may close the file of the next one
            request = key.data(key.fileobj)
            if request is not None:
                return request
        return None

    def _end(self, _owner: int = -1) -> None:
        for pid, _stub in self._children.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._over = True

    def _accept(self, listener: socket.socket) -> dict[str, Any] | None:
        stub, _ = listener.accept()
        request = _receive(stub)
        if request is None:
            stub.close()
            return None
        if request == END:
            self._asker = stub  # closed at the end of this process, after it has written its processor time
            self._end()
            return None
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._forget()
            stub.close()
            return request
        for descriptor in request["streams"]:
            os.close(descriptor)
        process = os.pidfd_open(pid)
        self._children[process] = (pid, stub)
        self._selector.register(process, selectors.EVENT_READ, self._child_ended)
        self._selector.register(stub, selectors.EVENT_READ, self._stub_ended)
        _tell(stub, {"pid": pid})
        return None

    def _child_ended(self, process: int) -> None:
        pid, stub = self._children.pop(process)
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(process)
        os.close(process)
        if stub.fileno() >= 0:
            self._selector.unregister(stub)
            _tell(stub, {"status": os.waitstatus_to_exitcode(status)})
            stub.close()

    def _stub_ended(self, stub: socket.socket) -> None:
        """Kills the child of a stub that has ended. After its request, the socket of a stub only reports its end."""
        self._selector.unregister(stub)
        stub.close()
        for pid, other in self._children.values():
            if other is stub:
                os.kill(pid, signal.SIGKILL)

    def _forget(self) -> None:
        """Closes all descriptors of the server in the child, so that only the files of the imports stay open."""
        for process, (_, stub) in self._children.items():
            os.close(process)
            stub.close()
        os.close(self._owner)
        self._listener.close()
        self._selector.close()


def _receive(stub: socket.socket) -> Any:
    """Reads a request: a line of JSON with three descriptors, or END. Returns None if the stub has ended."""
    descriptors = array.array("i")
    message, ancillary, _, _ = stub.recvmsg(1 << 16, socket.CMSG_LEN(STREAMS * descriptors.itemsize))
    for _level, _kind, data in ancillary:
        descriptors.frombytes(data)
    while not message.endswith(b"\n"):
        more = stub.recv(1 << 16)
        if not more:
            for descriptor in descriptors:
                os.close(descriptor)
            return None
        message += more
    request = json.loads(message)
    return request if request == END else {**request, "streams": list(descriptors)}


def _tell(stub: socket.socket, what: dict[str, int]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the stub has ended, which the next event reports
        stub.sendall(json.dumps(what).encode() + b"\n")


# --- in the child ----------------------------------------------------------------------------------------------------


def become(request: dict[str, Any]) -> None:
    """Makes this process the rank, and runs its program."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    os.setpgid(0, 0)  # like mpirun's own children
    threading.main_thread()._native_id = threading.get_native_id()  # Python before 3.13 keeps the parent's id
    for place, descriptor in enumerate(request["streams"]):
        os.dup2(descriptor, place)
    for descriptor in request["streams"]:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.nice(request["nice"] - os.nice(0))
    os.sched_setaffinity(0, request["affinity"])
    for number, limits in request["limits"].items():
        resource.setrlimit(int(number), limits)
    for number in INHERITED:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in request["ignored"] else usual)
    _seed()
    _run(request["arguments"])


def _keep(modules: list[types.ModuleType]) -> None:
    """Hides these modules from the end of Python, which would clear them and free all their objects."""
    kept = {id(module) for module in modules}
    for name, module in [*sys.modules.items()]:
        if id(module) in kept:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules.pop(name)))


def _end_without_destructors() -> None:
    """Makes the ends of this process and of its children leave out the destructors of the libraries that it has loaded.

    C calls what was registered in the reverse order: first the destructors of the libraries that a child's program loads, such
    as hvdlite's and MPI's, and then these two functions, the second of which ends the process.
    """
    library = ctypes.CDLL(None)
    library.on_exit(library._exit, None)  # C passes it the exit code
    library.__cxa_atexit(library.fflush, None, None)


def _seed() -> None:
    """Gives NumPy and torch random seeds, so that a missing broadcast is noticed. In fresh processes torch's seeds would be
    equal. Python itself seeds its random numbers after a fork.
    """
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(random.getrandbits(63))


def _run(arguments: list[str]) -> None:
    """Runs the program as ``python *arguments`` does."""
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(arguments[1])
        return
    program = Path(arguments[0])
    sys.argv[:] = arguments
    sys.path[0] = str(program.parent.resolve())
    module = types.ModuleType("__main__")
    module.__file__ = str(program)
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    exec(compile(program.read_bytes(), str(program), "exec"), module.__dict__)


if __name__ == "__main__":
    main()
