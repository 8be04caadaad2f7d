"""Handles: what an asynchronous operation returns, and what keeps its tensors alive until it has ended."""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hvdlite.backends import Exported, TensorBackend
from hvdlite.errors import HvdliteError, InvalidArgumentError
from hvdlite.runtime import RUNTIME

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Result

__all__ = ["Finish", "Handle", "OnGpu", "native_type", "poll", "synchronize"]

# Makes an ended operation's output. It holds the operation's tensors, and so keeps them alive.
Finish = Callable[["Result"], Any]
# What tells the streams of an operation on GPU memory; None for one on host memory.
OnGpu = tuple[TensorBackend, Exported] | None


class Handle:
    """One operation in flight, or a group of them. Give it to `poll` and `synchronize`, or use the methods.

    It stands for a number (``int(handle)``), as in Horovod, and compares and hashes as one. It holds the tensors:
    dropped before the operation ended, it leaves them to the runtime, which holds them until then. It is made before the
    operation is submitted, and the submission itself gives it the number: if Ctrl-C raises just then, the handle is dropped
    with the number and the tensors.

    On a GPU an operation has ended when its work was handed to the GPU. `synchronize` does not wait for the GPU: it puts the
    caller's current stream after that work, and the stream of the submission, in whose order the memory is used again.

    The members are those of a native class, which `native_type` adds: the engine makes most handles itself
    (``start_allreduce``), without `__init__`, and ends their operations (``land``).
    """

    if not TYPE_CHECKING:
        __slots__ = ()  # the members are there only in the native type
    _engine: "Engine"
    _numbers: Sequence[int]
    _outcomes: "Sequence[Result | HvdliteError]"  # of those waited for, in order
    _finish: Sequence[Finish] | None  # None: done with
    _on_gpu: Sequence[OnGpu]  # of each number, or nothing where all are in host memory
    _error: HvdliteError | None
    _grouped: bool

    def __new__(cls, *_arguments: object) -> "Handle":
        """A handle of the native type."""
        kind = native_type()
        return kind.__new__(kind)

    def __init__(
        self,
        engine: "Engine",
        numbers: Sequence[int],
        finish: Sequence[Finish],
        grouped: bool,
        on_gpu: Sequence[OnGpu] = (),
    ) -> None:
        self._engine = engine
        self._numbers = numbers
        self._outcomes = ()  # a list when it is needed, since a program may hold many handles
        self._finish = finish
        self._grouped = grouped
        self._on_gpu = on_gpu
        self._error = None

    def poll(self) -> bool:
        """Has the operation ended, well or badly? True as well once it was synchronised."""
        waiting = self._in_flight()
        if not waiting:
            return True
        self._check_alive()
        return all(map(self._engine.poll, waiting))

    def synchronize(self, timeout: float = math.inf) -> Any:
        """Waits for the operation and returns its output.

        Args:
            timeout: how many seconds to wait for it at most (for each one of a group).

        Returns:
            What the function without ``_async`` returns; ``(output, received_splits)`` for alltoall; a list for a
            group; None if the handle was synchronised before.

        Raises:
            MismatchError: the ranks asked for different things; the text says who asked for what.
            HorovodInternalError: the operation failed otherwise; the text starts with the first cause.
            TimeoutError: the time is over; the operation stays in flight, and the handle may be waited for again.
        """
        if RUNTIME.engine is self._engine:
            output = self._engine.land(self, timeout)
            if output is not NotImplemented:
                self._finish, self._outcomes = None, ()
                return output
        if self._error is not None:
            raise self._error
        finish = self._finish
        if finish is None:
            return None
        numbers = self._numbers
        outcomes: Any = self._outcomes
        if not outcomes:
            outcomes = self._outcomes = []
        # Whatever is raised from here on, by Ctrl-C for one, leaves this handle able to be synchronised again.
        if len(outcomes) < len(numbers):
            self._check_alive()
            for place in range(len(outcomes), len(numbers)):
                streams = self._streams(place) if self._on_gpu else ()
                self._engine.wait_into(outcomes, numbers[place], limit=timeout, streams=streams, place=place)
        for outcome in outcomes:
            if isinstance(outcome, HvdliteError):
                RUNTIME.keep_after(outcome, finish)
                self._error = self._error or outcome
        if self._error is not None:
            self._finish, self._outcomes = None, ()
            raise self._error
        if self._grouped:
            output = [make(outcome) for make, outcome in zip(finish, outcomes, strict=True)]
        else:
            output = finish[0](outcomes[0])
        self._finish, self._outcomes = None, ()
        return output

    def _in_flight(self) -> Sequence[int]:
        """The numbers of those that nobody has waited for."""
        return () if self._finish is None else self._numbers[len(self._outcomes) :]

    def _streams(self, index: int) -> tuple[int, ...]:
        """The streams that come after an operation: the current one, and that of the submission if it is another."""
        place = self._on_gpu[index]
        if place is None:
            return ()
        backend, exported = place
        now = backend.stream_now(exported)
        return (now,) if now == exported.stream else (now, exported.stream)

    def _check_alive(self) -> None:
        """Refuses to touch an engine that this process no longer has."""
        if RUNTIME.engine is not self._engine:
            RUNTIME.require()
            raise InvalidArgumentError("this handle is from before hvdlite.shutdown(); its operation ended then")

    def __int__(self) -> int:
        return self._numbers[0] if self._numbers else 0

    __index__ = __int__

    def __hash__(self) -> int:
        return hash(int(self))

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, int) and other == int(self))

    def __repr__(self) -> str:
        state = "in flight" if self._in_flight() else "ended"
        return f"<hvdlite.Handle {int(self)}, {state}>"

    def _leave(self) -> None:
        """Called where the handle is let go with operations in flight: the runtime keeps their memory until they end."""
        numbers = self._in_flight()
        if not self._on_gpu:
            RUNTIME.park(self._engine, numbers, self._finish)
            return
        for number, place in zip(numbers, self._on_gpu[len(self._outcomes) :], strict=True):
            RUNTIME.park(self._engine, [number], self._finish, () if place is None else (place[1].stream,))


@cache
def native_type() -> type[Handle]:
    """The type of all handles. Loads the native module, which importing hvdlite does not."""
    from hvdlite._engine import HandleState

    class NativeHandle(HandleState, Handle):
        __slots__ = ("__weakref__",)

    return NativeHandle


def poll(handle: Handle) -> bool:
    """Has the operation behind a handle ended? It must still be synchronised.

    Raises:
        InvalidArgumentError: this is no handle.
        NotInitializedError: hvdlite was shut down meanwhile.
    """
    return _checked(handle).poll()


def synchronize(handle: Handle) -> Any:
    """Waits for the operation behind a handle and returns its output; see `Handle.synchronize`."""
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
