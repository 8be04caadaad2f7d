"""A rank of ``hvdlite.run``: reads the function from the folder, calls it, and writes the outcome there."""

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

__all__ = ["CALL", "load_outcome", "main", "make_exception", "pickler"]

CALL = "call.pkl"


def pickler() -> tuple[Callable[[Any], bytes], bool]:
    """The pickler, and whether it sends functions by value: cloudpickle's if that is installed."""
    try:
        import cloudpickle
    except ImportError:
        return pickle.dumps, False
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    return dumps, True


def load_outcome(folder: str, rank: int) -> tuple[str | None, Any]:
    """``(None, result)`` of a rank that has returned, ``(traceback, exception or None)`` of one that has raised.

    Raises:
        FileNotFoundError: it has done neither.
    """
    text, data = pickle.loads(Path(folder, f"outcome.{rank}.pkl").read_bytes())
    return text, pickle.loads(data)


def _store(folder: str, rank: int, text: str | None, data: bytes) -> None:
    """Writes the file at once, so that no process reads half of it. Only its owner can read it."""
    own = os.path.join(folder, f"outcome.{rank}.tmp")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pickle.dumps((text, data)))
    os.rename(own, os.path.join(folder, f"outcome.{rank}.pkl"))


def _as_it_arrives(error: BaseException) -> bytes:
    """The exception as bytes; None if it cannot be pickled and unpickled.

    An exception is pickled as a call of its class with the arguments of `BaseException`. If the class's ``__init__`` needs
    others, the exception is made without it.
    """
    for each in (error, _WithoutInit(error)):
        with contextlib.suppress(Exception):
            data = pickler()[0](each)
            pickle.loads(data)
            return data
    return pickle.dumps(None)


class _WithoutInit:
    """Is pickled as the exception that it holds."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return make_exception, (type(self._error), self._error.args, vars(self._error))


def make_exception(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    """An exception of a class, without a call of its ``__init__``."""
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(attributes)
    return error


def main(folder: str) -> None:
    """Makes the call. Stores an exception and raises it again, so that it is printed and other ranks are told."""
    rank = rank_of(os.environ)
    file = Path(folder, CALL)
    if not file.exists():
        raise SystemExit(f"hvdlite.run: {file} is not on host {os.uname().nodename}; pass folder=, one that all hosts share")
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
                f"hvdlite.run: the result of rank {rank}, a {type(value).__name__}, cannot be pickled: {error}"
            ) from error
        _store(folder, rank, None, data)
    except BaseException as error:
        _store(folder, rank, "".join(traceback.format_exception(error)), _as_it_arrives(error))
        raise


if __name__ == "__main__":
    main(sys.argv[1])
