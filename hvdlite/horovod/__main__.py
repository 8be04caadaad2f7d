"""``python -m hvdlite.horovod script.py args`` and ``python -m hvdlite.horovod -m module args``.

The program runs as under ``python`` alone: as ``__main__``, with its own ``sys.argv`` and ``sys.path``, and with the same exit
status and tracebacks. Two things differ: ``import horovod`` imports hvdlite, and the knob horovod_rules is on.
"""

import builtins
import importlib.util
import io
import multiprocessing
import os
import pkgutil
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType
from typing import Any, NoReturn

USAGE = """\
usage: python -m hvdlite.horovod script.py [arguments]
       python -m hvdlite.horovod -m module [arguments]

Runs an unchanged program that imports Horovod; it uses hvdlite instead of Horovod. On several ranks:

       mpirun -n 2 python -m hvdlite.horovod script.py [arguments]
"""


def main() -> None:
    """Reads the command line, and runs the program that it names in this process."""
    words = sys.argv[1:]
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return
    is_module = words[:1] == ["-m"]
    words = words[is_module:]
    if not words or (words[0].startswith("-") and not is_module):
        _refuse(USAGE, status=2)
    from hvdlite.horovod import install

    # By default the fork server of multiprocessing imports the program, and nothing before it. Then `import horovod` in the
    # program would not find hvdlite. With this list the fork server imports only `install`.
    multiprocessing.set_forkserver_preload([install.__name__])
    sys.argv[:] = words
    program = ModuleType("__main__")
    program.__builtins__ = builtins  # type: ignore[attr-defined]
    _hide_our_frames(program)
    code = _load_module(words[0], program) if is_module else _load_file(words[0], program)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = program  # multiprocessing uses the second name
    exec(code, vars(program))


def _load_file(path: str, program: ModuleType) -> CodeType:
    """Returns the code of a script, or of the ``__main__.py`` in a folder or an archive. Sets the attributes of `program`."""
    full = os.path.join(os.getcwd(), path)
    importer = pkgutil.get_importer(full)
    if importer is not None:
        _go_first(full)
        spec = importer.find_spec("__main__")
        if spec is None:
            _refuse(f"can't find '__main__' module in {path!r}")
        return _load_spec(spec, program)
    try:
        with io.open_code(full) as file:
            source = file.read()
    except OSError as error:
        _refuse(f"can't open file {full!r}: [Errno {error.errno}] {error.strerror}", status=2)
    _go_first(os.path.dirname(os.path.realpath(path)))
    vars(program).update(__file__=full, __cached__=None, __loader__=SourceFileLoader("__main__", full))
    return compile(source, full, "exec", dont_inherit=True)


def _load_module(name: str, program: ModuleType) -> CodeType:
    """Returns the code of a module on ``sys.path``, or of the ``__main__`` of a package. Sets the attributes of `program`."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        _refuse(f"Error while finding module specification for {name!r} ({type(error).__name__}: {error})")
    if spec is None:
        _refuse(f"No module named {name}")
    sys.argv[0] = spec.origin or name
    return _load_spec(spec, program)


def _load_spec(spec: ModuleSpec, program: ModuleType) -> CodeType:
    loader: Any = spec.loader
    code: CodeType | None = loader.get_code(spec.name) if hasattr(loader, "get_code") else None
    if code is None:
        _refuse(f"No code object available for {spec.name}")
    vars(program).update(
        __file__=spec.origin, __cached__=spec.cached, __loader__=loader, __package__=spec.parent, __spec__=spec
    )
    return code


def _go_first(folder: str) -> None:
    """Replaces the current folder, which ``python -m`` has put first in ``sys.path``, by the folder of the program.

    With the options -I and -P Python has put no folder there, so nothing is replaced.
    """
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):  # safe_path exists since Python 3.11
        sys.path[0] = folder


def _hide_our_frames(program: ModuleType) -> None:
    """Removes hvdlite's frames from the traceback of an uncaught exception."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = trace
        while own is not None and own.tb_frame.f_globals is not vars(program):
            own = own.tb_next
        if own is not None or isinstance(error, SyntaxError):  # a syntax error of the program has no frame in it
            error.__traceback__ = trace = own
        previous(kind, error, trace)

    sys.excepthook = hook


def _refuse(text: str, status: int = 1) -> NoReturn:
    print(text.rstrip(), file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
