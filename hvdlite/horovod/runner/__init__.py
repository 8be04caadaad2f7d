"""``horovod.runner``: Horovod's way of starting processes from Python, which hvdlite does not have."""

from collections.abc import Callable
from typing import Any, NoReturn

from hvdlite.errors import UnsupportedError

__all__ = ["run"]


def run(
    func: Callable[..., Any],
    args: Any = (),
    kwargs: Any = None,
    num_proc: int = 1,
    *more: Any,
    np: int | None = None,
    **settings: Any,
) -> NoReturn:
    """Not offered: hvdlite starts no processes.

    Raises:
        UnsupportedError: always; says how to start the function with mpirun.
    """
    name = getattr(func, "__name__", "the function")
    raise UnsupportedError(
        f"horovod.run({name}) is not offered: hvdlite starts no processes. Call {name} at the end of a script, and start that "
        f"with mpirun -n {np or num_proc} python -m hvdlite.horovod script.py"
    )
