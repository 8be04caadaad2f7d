"""Handles: the objects that asynchronous operations return. A handle keeps its tensors alive until the operation has ended."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hvdlite.backends import Exported, TensorBackend
from hvdlite.errors import HvdliteError, InvalidArgumentError
from hvdlite.runtime import RUNTIME

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Result, Work
else:
    Work = object  # that of the native type is added later

__all__ = ["Finish", "Handle", "OnGpu", "native_type", "poll", "synchronize"]

# A function that makes the output of an ended operation. It refers to the operation's tensors, and so keeps them alive.
Finish = Callable[["Result"], Any]
# For an operation on GPU memory its backend and its tensor, from which the streams are known; None for one on host memory.
OnGpu = tuple[TensorBackend, Exported] | None


class Handle(Work):
    """One operation in flight, or one group of operations. Pass it to `poll` and `synchronize`, or call its methods.

    A handle has a number (``int(handle)``), as in Horovod, and compares and hashes as that number. It is a
    `hvdlite._engine.Work`, which keeps the tensors alive. If the program drops the handle before the operation has ended, the
    engine keeps the tensors until then. So Ctrl-C does no harm at any time.

    On a GPU an operation has ended when all that the GPU must do for it is enqueued. `synchronize` does not wait for the GPU,
    but orders the caller's current stream after the operation; also the stream of the submission, because the framework reuses
    memory in the order of that stream.

    `native_type` adds the native base class, which has the members. For a submission by native code (``Engine.allreduce``),
    native code makes the handle, without `__init__`, and later the outputs (``_outputs``).

    Args:
        finish: the function that makes the output of the operation; for a group one function for each operation.
        grouped: does the handle stand for a group, whose output is a list?
        on_gpu: an `OnGpu` for each operation; empty if all tensors are in host memory.
    """

    if not TYPE_CHECKING:
        __slots__ = ()  # only the native type has the members
    _engine: "Engine | None"  # None if nothing was submitted
    _finish: Finish | Sequence[Finish] | None  # None once synchronised
    _on_gpu: Sequence[OnGpu] | None
    _error: HvdliteError | None
    _grouped: bool

    def __new__(cls, *_arguments: object) -> "Handle":
        """A handle of the native type."""
        kind = native_type()
        return kind.__new__(kind)

    def __init__(self, finish: Finish | Sequence[Finish], grouped: bool, on_gpu: Sequence[OnGpu] = ()) -> None:
        self._finish = finish
        self._grouped = grouped
        self._on_gpu = on_gpu

    def poll(self) -> bool:
        """Has the operation ended, with or without an error? True after `synchronize`, too."""
        if self._finish is None or self._engine is None:
            return True
        self._check_alive()
        return super().poll()

    def synchronize(self, timeout: float = math.inf) -> Any:
        """Waits for the operation and returns its output.

        Args:
            timeout: how many seconds to wait at most.

        Returns:
            What the function without ``_async`` returns; ``(output, received_splits)`` for alltoall; a list for a
            group; None if the handle was synchronised before.

        Raises:
            MismatchError: the ranks asked for different things; the text says who asked for what.
            HorovodInternalError: the operation failed for another reason; the text starts with the first cause.
            TimeoutError: the operation has not ended in time. It stays in flight, and `synchronize` may be called again.
            NotInitializedError: hvdlite was shut down after the submission.
            InvalidArgumentError: hvdlite was shut down after the submission, and initialised again.
            InvalidArgumentError: the timeout is nan.
        """
        if math.isnan(timeout):
            raise InvalidArgumentError("synchronize(timeout=nan): pass a number of seconds")
        # If an exception is raised here, such as Ctrl-C, the handle can be synchronised again.
        if RUNTIME.engine is self._engine:
            output = self._outputs(timeout)
            if output is not NotImplemented:
                self._finish = None
                return output
        if self._error is not None:
            raise self._error
        finish: Any = self._finish
        if finish is None:
            return None
        if self._engine is not None:
            self._check_alive()
            self.wait(timeout, self._streams())
        results = self.results()
        self._error = next((result for result in results if isinstance(result, HvdliteError)), None)
        if self._error is not None:
            self._finish = None
            raise self._error
        output = [make(result) for make, result in zip(finish, results, strict=True)] if self._grouped else finish(results[0])
        self._finish = None
        return output

    def _streams(self) -> Sequence[int]:
        """The streams to order after the operation: the current ones, and those of the submission."""
        streams: dict[int, None] = {}
        for place in self._on_gpu or ():
            if place is not None:
                backend, exported = place
                streams[backend.stream_now(exported)] = streams[exported.stream] = None
        return tuple(streams)

    def _check_alive(self) -> None:
        """Raises an error if this process no longer has the engine of this handle."""
        if RUNTIME.engine is not self._engine:
            RUNTIME.require()
            raise InvalidArgumentError("this handle is from before hvdlite.shutdown(); its operation ended then")

    def __int__(self) -> int:
        return self.number

    __index__ = __int__

    def __hash__(self) -> int:
        return hash(int(self))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and other == int(self))

    def __repr__(self) -> str:
        state = "ended" if self._finish is None or self._engine is None else "in flight"
        return f"<hvdlite.Handle {int(self)}, {state}>"


@cache
def native_type() -> type[Handle]:
    """The type of all handles. It loads the native module, which ``import hvdlite`` does not load."""
    from hvdlite._engine import Work

    class NativeHandle(Handle, Work):
        __slots__ = ("__weakref__",)
        __new__ = Work.__new__  # type: ignore[assignment]

    kind: type[Handle] = NativeHandle
    return kind


def poll(handle: Handle) -> bool:
    """Has the operation of `handle` ended? Whether it has or not, call `synchronize` to get the output or the error.

    Raises:
        InvalidArgumentError: `handle` is not a handle, or is from before hvdlite was shut down and initialised again.
        NotInitializedError: hvdlite was shut down after the submission.
    """
    return _checked(handle).poll()


def synchronize(handle: Handle) -> Any:
    """Waits for the operation of `handle` and returns its output.

    Raises:
        InvalidArgumentError: `handle` is not a handle.
        NotInitializedError, InvalidArgumentError, MismatchError, HorovodInternalError: as for `Handle.synchronize`.
    """
    return _checked(handle).synchronize()


def _checked(handle: Any) -> Handle:
    if callable(handle):
        raise InvalidArgumentError(
            f"{handle!r} is no handle but a function: call what sparse_allreduce_async returned, without arguments, to wait "
            "for the result"
        )
    if not isinstance(handle, Handle):
        raise InvalidArgumentError(f"{handle!r} is no handle: pass the object that the function ending in _async returned")
    return handle
