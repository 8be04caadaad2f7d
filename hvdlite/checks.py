"""Checks of arguments that optimizers and collectives of several doors share. Callers check before they change anything."""

from typing import Any

from hvdlite.errors import InvalidArgumentError
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import Average


def check_passes(passes: int) -> None:
    """Raises InvalidArgumentError unless `passes` is a whole number above 0."""
    if isinstance(passes, bool) or not isinstance(passes, int) or passes <= 0:
        raise InvalidArgumentError(f"backward_passes_per_step must be > 0 and whole, got {passes!r}")


def check_predivide(predivide: float, op: int) -> None:
    """Raises InvalidArgumentError unless gradient_predivide_factor is above 0 and, with an op other than Average, is 1."""
    if predivide != 1.0 and op != Average:
        raise InvalidArgumentError("gradient_predivide_factor not supported with op != Average")
    if not predivide > 0:
        raise InvalidArgumentError(f"gradient_predivide_factor={predivide!r} must be > 0")


def check_type_of_set(process_set: ProcessSet) -> None:
    """Raises InvalidArgumentError unless `process_set` is a ProcessSet, registered or not."""
    if not isinstance(process_set, ProcessSet):
        raise InvalidArgumentError(f"process_set={process_set!r} is no ProcessSet; hvdlite.add_process_set returns one")


def member_id(process_set: ProcessSet, kind: int) -> int:
    """The id of the set. `kind` is the kind of the operation, which error texts name.

    Raises:
        InvalidArgumentError: `process_set` is not a process set, is not registered, or does not include this rank.
    """
    check_type_of_set(process_set)
    return process_set.require_member(kind)


def check_process_set(process_set: ProcessSet) -> None:
    """Raises InvalidArgumentError unless `process_set` is a registered process set."""
    check_type_of_set(process_set)
    if process_set.process_set_id is None:
        raise InvalidArgumentError(f"{process_set} has not been registered: pass it to hvdlite.add_process_set first")


def check_given(operation: str, value: Any, name: str | None) -> None:
    """Raises InvalidArgumentError if the tensor given to a collective is None."""
    if value is None:
        what = operation if name is None else f"{operation} of {name!r}"
        raise InvalidArgumentError(f"{what}: None is no tensor; a rank that has nothing to give must pass zeros")
