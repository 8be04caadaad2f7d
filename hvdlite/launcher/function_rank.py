"""A rank of ``hvdlite.run``: reads the function from the private folder, calls it, and writes its outcome into the folder."""

import contextlib
import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvdlite.launcher.rank import rank_of

CALL = "call.pkl"


def pickler() -> tuple[Callable[[Any], bytes], bool]:
    """The function that pickles (cloudpickle's, if this package is installed), and whether it pickles functions by value."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps, False
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    return dumps, True


def load_outcome(folder: str, rank: int) -> tuple[str | None, Any]:
    """The outcome of a rank: ``(None, result)`` if the function has returned, ``(traceback, exception or None)`` if it has
    raised.

    Raises:
        FileNotFoundError: the rank has written no outcome.
    """
    text, data = pickle.loads(Path(folder, f"outcome.{rank}.pkl").read_bytes())
    return text, pickle.loads(data)


def _store(folder: str, rank: int, text: str | None, data: bytes) -> None:
    """Writes an outcome to a file, which only this user can read. The file gets its name when the outcome is complete, so that
    no process reads a part of it.
    """
    own = os.path.join(folder, f"outcome.{rank}.tmp")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pickle.dumps((text, data)))
    os.rename(own, os.path.join(folder, f"outcome.{rank}.pkl"))


def _as_it_arrives(error: BaseException) -> bytes:
    """The pickled exception; a pickled None if the exception cannot be pickled and unpickled.

    Python unpickles an exception by a call of its class with the exception's ``args``. If the class's ``__init__`` takes other
    arguments, the exception is pickled in such a way that unpickling it does not call ``__init__``.
    """
    for each in (error, _WithoutInit(error)):
        with contextlib.suppress(Exception):
            data = pickler()[0](each)
            pickle.loads(data)
            return data
    return pickle.dumps(None)


class _WithoutInit:
    """Holds an exception, and is unpickled as this exception without a call of its ``__init__``."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return make_exception, (type(self._error), self._error.args, vars(self._error))


def make_exception(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    """Makes an exception of class `kind` with these `args` and attributes, without a call of its ``__init__``."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error


def main(folder: str) -> None:
    """Reads the function and its arguments from the folder, calls the function, and stores the outcome.

    An exception of the function is raised again, so that Python prints the exception and hvdlite tells the other ranks.

    Args:
        folder: the path of the private folder.

    Raises:
        SystemExit: the folder is not on this host.
        TypeError: the result cannot be pickled.
        BaseException: the function has raised.
    """
    rank = rank_of(os.environ)
    file = Path(folder, CALL)
    if not file.exists():
        raise SystemExit(f"hvdlite.run: {file} is not on host {os.uname().nodename}; pass folder=, which all hosts must share")
    try:
        path, preload, call = pickle.loads(file.read_bytes())
        sys.path += [entry for entry in path if entry not in sys.path]
        for module in preload:
            importlib.import_module(module)
        fn, args, kwargs = pickle.loads(call)
        value = fn(*args, **kwargs)
        try:
            data = pickler()[0](value)
        except Exception as error:
            raise TypeError(
                f"hvdlite.run: the result of rank {rank}, of type {type(value).__name__}, cannot be pickled: {error}"
            ) from error
        _store(folder, rank, None, data)
    except BaseException as error:
        _store(folder, rank, "".join(traceback.format_exception(error)), _as_it_arrives(error))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
