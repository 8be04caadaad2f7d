"""The errors: one table from the engine's error code to a Python class and to a TensorFlow status.

The numbers are those of ``HVDLITE_E_*`` in hvdlite.h. Every class derives from `HvdliteError` (a ``RuntimeError``). Where
Horovod raises another class, such as ``ValueError`` for bad arguments, hvdlite's class derives from Horovod's class, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "ERRORS",
    "AbortedError",
    "ErrorCode",
    "ErrorRow",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "HvdliteError",
    "InternalError",
    "InvalidArgumentError",
    "MismatchError",
    "NotInitializedError",
    "OperationTimeoutError",
    "PeerLostError",
    "SystemFailure",
    "UnsupportedError",
    "UnsupportedNameError",
    "error_class",
    "install",
    "missing_name",
]


class ErrorCode(IntEnum):
    """The error codes of the native code."""

    OK = 0
    INVALID_ARGUMENT = 1
    MISMATCH = 2
    PEER_LOST = 3
    TIMEOUT = 4
    ABORTED = 5
    NOT_INITIALIZED = 6
    UNSUPPORTED = 7
    SYSTEM = 8
    INTERNAL = 9


class HvdliteError(RuntimeError):
    """Base class of all errors that hvdlite raises. The attribute ``code`` is an `ErrorCode`."""

    code: ErrorCode = ErrorCode.INTERNAL
    # Tells TensorFlow's AutoGraph to keep this class if the error is raised while it traces a function.
    ag_pass_through = True


class HorovodInternalError(HvdliteError):
    """Base class of the errors of a submitted collective that fails because of other ranks or of the system.

    Elastic training catches these errors. A submitted collective can also raise `InvalidArgumentError` and `UnsupportedError`,
    which are not derived from this class.
    """


class MismatchError(HorovodInternalError):
    """Ranks ask for different operations under one name: an error of the program. The engine stays usable."""

    code = ErrorCode.MISMATCH


class PeerLostError(HorovodInternalError):
    """A rank died, raised an exception or gave up, or its host is silent. The text names the first known cause. Only an elastic
    job can continue.
    """

    code = ErrorCode.PEER_LOST


class OperationTimeoutError(HorovodInternalError):
    """A wait is over its time limit, or ranks wait for each other, and none can go on (a deadlock). The text lists which rank
    waits for what.
    """

    code = ErrorCode.TIMEOUT


class AbortedError(HorovodInternalError):
    """A rank that this operation needs has left the job, this rank has called `hvdlite.shutdown`, or Ctrl-C has ended a
    training step, so that the gradients of the step are lost.
    """

    code = ErrorCode.ABORTED


class SystemFailure(HorovodInternalError):
    """The operating system or MPI reported an error."""

    code = ErrorCode.SYSTEM


class InternalError(HorovodInternalError):
    """A bug of hvdlite. The text asks you to report it."""

    code = ErrorCode.INTERNAL


class InvalidArgumentError(HvdliteError, ValueError):
    """An argument or a knob is wrong. The engine stays usable. Nothing was sent, unless the function says otherwise."""

    code = ErrorCode.INVALID_ARGUMENT


class NotInitializedError(HvdliteError, ValueError):
    """A call came before `hvdlite.init()`, after `hvdlite.shutdown()`, or in a forked child of an initialised process."""

    code = ErrorCode.NOT_INITIALIZED

    def __init__(self, text: str = "") -> None:
        said = text or "hvdlite has not been initialized in this process: call hvdlite.init() first."
        fragment = "Horovod has not been initialized; use hvd.init()."
        super().__init__(said if fragment in said else f"{said} ({fragment})")


class UnsupportedError(HvdliteError, NotImplementedError):
    """A feature that hvdlite does not have. The text says what to do instead."""

    code = ErrorCode.UNSUPPORTED


class UnsupportedNameError(UnsupportedError, AttributeError):
    """A module of hvdlite lacks a name that programs may look for. The text names a replacement. ``hasattr`` returns False for
    the name.
    """


def missing_name(module: str, name: str, remedies: Mapping[str, str]) -> AttributeError:
    """The error that a module's ``__getattr__`` raises.

    Args:
        module: the name of the module.
        name: the name that the module lacks.
        remedies: for names that programs may look for, such as some of Horovod's, what to use instead.
    """
    if name in remedies:
        return UnsupportedNameError(f"{module} does not offer {name}: {remedies[name]}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")


class HostsUpdatedInterrupt(RuntimeError):
    """Ends a training function because hosts were added or removed. It is not an error: `hvdlite.elastic.run` catches it.

    Attributes:
        skip_sync: do all remaining ranks have the same state, so that they need not send it to each other?
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__("the hosts of the job have changed")
        self.skip_sync = skip_sync


@dataclass(frozen=True)
class ErrorRow:
    """One error code: the class that Python raises, and the name of the status that TensorFlow's kernels set."""

    python: type[HvdliteError]
    tensorflow: str


ERRORS: Mapping[ErrorCode, ErrorRow] = {
    ErrorCode.INVALID_ARGUMENT: ErrorRow(InvalidArgumentError, "INVALID_ARGUMENT"),
    ErrorCode.MISMATCH: ErrorRow(MismatchError, "FAILED_PRECONDITION"),
    ErrorCode.PEER_LOST: ErrorRow(PeerLostError, "ABORTED"),
    ErrorCode.TIMEOUT: ErrorRow(OperationTimeoutError, "DEADLINE_EXCEEDED"),
    ErrorCode.ABORTED: ErrorRow(AbortedError, "ABORTED"),
    ErrorCode.NOT_INITIALIZED: ErrorRow(NotInitializedError, "FAILED_PRECONDITION"),
    ErrorCode.UNSUPPORTED: ErrorRow(UnsupportedError, "UNIMPLEMENTED"),
    ErrorCode.SYSTEM: ErrorRow(SystemFailure, "UNKNOWN"),
    ErrorCode.INTERNAL: ErrorRow(InternalError, "INTERNAL"),
}


def error_class(code: int) -> type[HvdliteError]:
    """The class for an error code; `InternalError` for a code this version does not know."""
    try:
        return ERRORS[ErrorCode(code)].python
    except (ValueError, KeyError):
        return InternalError


def install(set_error_classes: Callable[[Mapping[int, type[BaseException]]], None]) -> None:
    """Passes the classes to the native module (its ``set_error_classes``), which raises them from then on."""
    set_error_classes({int(code): row.python for code, row in ERRORS.items()})
