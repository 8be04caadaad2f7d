"""The `Work` that a function of torch.distributed returns, on top of a `Handle`.

A caller of `Work.wait` waits inside hvdlite, drives the engine and gets hvdlite's own exceptions. C++ code (DDP's reducer) and
callbacks need a future instead. If the operation is still in flight when they ask for the future, a new thread completes the
future. One thread for all futures is not possible, because a future's callbacks run in the thread that completes the future,
and may wait for other futures. Besides, such a thread would sometimes be idle, and then the engine's deadlock detection would
treat it as a caller that may still submit operations.

Each thread has its own current streams. So the first thread that notices the end of an operation on GPUs records events in its
streams, and each later caller of `wait` orders its own streams after these events. A future that knows the GPUs of its tensors
orders the streams of its callbacks in the same way.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work

from hvdlite.errors import AbortedError, InvalidArgumentError, OperationTimeoutError
from hvdlite.handles import Handle
from hvdlite.torch.gpu import events_of, order_after

_Future = torch.futures.Future[Any]

# Before torch 2.7: if only C++ code holds a Work, the Work's C++ part stays alive, but Python frees the object with the methods
# below. So `_recent` keeps the latest objects. The C++ code holds at most two works at a time.
_TORCH_FREES_WORKS = tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7)
_recent: "deque[HvdliteWork]" = deque(maxlen=8)

_first_call = threading.Lock()  # held while a work's future is made

# If `wait` gets this timeout, it uses the timeout of the operation's options, or of the group if the options have none, as in
# torch.
_NO_TIMEOUT = timedelta(0)

# At this interval a thread that waits checks whether its group was aborted.
_LOOK_SECONDS = 0.1


class HvdliteWork(Work):
    """One operation in flight. Any thread may call the methods.

    Attributes:
        source: the sender's rank in the group, for a receive that has ended; otherwise -1.

    Args:
        what: the operation and its group, for error texts.
        handle: the handle of the operation.
        outputs: the caller's tensors for the result; for a send, the tensors that are sent.
        finish: stores the handle's result in the outputs; None if nothing is left to store.
        timeout: the longest wait, if the caller of `wait` gives no timeout.
        is_aborted: a function that returns whether this rank has aborted the group.
        numbered: a function that is called with the future, so that collectives of its callbacks get numbers (callbacks.py).
    """

    def __init__(
        self,
        what: str,
        handle: Handle,
        outputs: list[torch.Tensor],
        finish: Callable[[Any], None] | None,
        timeout: timedelta,
        is_aborted: Callable[[], bool],
        numbered: Callable[[_Future], None],
    ) -> None:
        super().__init__()
        self._what = what
        self._handle = handle
        self._outputs = outputs
        self._finish = finish
        self._timeout = timeout
        self._is_aborted = is_aborted
        self._numbered = numbered
        self.source = -1
        self._lock = threading.Lock()  # held by the thread that waits
        self._done = False
        self._error: BaseException | None = None
        self._future: _Future | None = None
        self._failure: Exception | None = None  # the exception in the thread of the future: the operation's error, or a timeout
        self._events: list[Any] = []  # in the GPUs' work, after which the results are ready
        if _TORCH_FREES_WORKS:
            _recent.append(self)

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Waits until the operation has ended and the tensors hold the result.

        Args:
            timeout: the longest wait; by default the timeout of the operation's options, or of the group if the options have
                none.

        Returns:
            True. On a GPU the operation may still run, but the current stream is ordered after the operation.

        Raises:
            HorovodInternalError: the operation failed; the text says why.
            OperationTimeoutError: the operation has not ended in time. It stays in flight.
            AbortedError: this rank has aborted the group. The operation stays in flight, and may still write to its tensors.
            InvalidArgumentError: the result does not fit the tensors given for it, or the timeout is negative.
        """
        limit = (timeout or self._timeout).total_seconds()
        if limit < 0:
            raise InvalidArgumentError(f"{self._what}: wait(timeout={limit:g} s): pass a timedelta above 0, or leave it out")
        deadline = time.monotonic() + limit
        if not self._lock.acquire(timeout=min(limit, threading.TIMEOUT_MAX)):
            raise self._timed_out(limit)
        try:
            if not self._done:
                self._end(deadline, limit)
            order_after(self._events)
        finally:
            self._lock.release()
        if self._error is not None:
            raise self._error
        return True

    def _end(self, deadline: float, limit: float) -> None:
        try:
            result = self._result_until(deadline)
            if self._finish is not None:
                self._finish(result)
            self._events = events_of(self._outputs)
        except TimeoutError:
            raise self._timed_out(limit) from None
        except Exception as error:
            self._error = error
        self._done = True
        self._finish = None  # frees the tensors to which it refers

    def _result_until(self, deadline: float) -> Any:
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return self._handle.synchronize(min(left, _LOOK_SECONDS))
            except TimeoutError:
                if self._is_aborted():
                    raise AbortedError(f"{self._what}: this rank has aborted the group, and waits no longer") from None
                if not left:
                    raise

    def _timed_out(self, seconds: float) -> OperationTimeoutError:
        return OperationTimeoutError(
            f"{self._what} has not ended within the timeout of {seconds:g} s: a rank of the group is late or has not called "
            "it; see what that rank does, or give this wait, init_process_group or new_group a longer timeout"
        )

    def is_completed(self) -> bool:
        """Has the operation ended, with or without an error? On a GPU: has the GPU also computed the results?"""
        return self._has_ended() and all(event.query() for event in self._events)

    def _has_ended(self) -> bool:
        if not self._done and self._lock.acquire(blocking=False):
            try:
                if not self._done and self._handle.poll():
                    self._end(0.0, 0.0)
            finally:
                self._lock.release()
        return self._done

    def is_success(self) -> bool:
        """Has the operation ended without an error?"""
        return self._has_ended() and self._error is None

    def exception(self) -> BaseException | None:
        """The operation's error, or None."""
        return self._error if self._has_ended() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result, once the operation has ended."""
        return self._outputs

    def _source_rank(self) -> int:
        """Torch's method for `source`."""
        return self.source

    def synchronize(self) -> None:
        """The same as `wait`; torch calls this method in some places."""
        self.wait()

    def get_future(self) -> _Future:
        """A future of the tensors that hold the result. If the operation fails, the future's error is a RuntimeError with the
        text of hvdlite's error.
        """
        with _first_call:
            if self._future is not None:
                return self._future
            devices = sorted({output.device.index for output in self._outputs if output.is_cuda})
            begun: _Future = torch.futures.Future(devices=[torch.device("cuda", index) for index in devices])
            # C++ code sees an exception if a callback raises it, but not if it is set on a future. So a callback raises it.
            future = begun.then(self._outcome)
            self._numbered(future)
            self._future = future
        if self._has_ended():
            self._begin(begun)
        else:
            threading.Thread(target=self._complete, args=(begun,), name="hvdlite-future", daemon=True).start()
        return future

    def _outcome(self, _: _Future) -> list[torch.Tensor]:
        error = self._failure or self._error
        if error is not None:
            raise error
        return self._outputs

    def _complete(self, begun: _Future) -> None:
        try:
            self.wait()
        except Exception as error:
            self._failure = error
        self._begin(begun)

    def _begin(self, begun: _Future) -> None:
        """Completes `begun`, whose callback is `_outcome`. If a completed future holds GPU tensors, torch orders the streams of
        its callbacks after the current streams of the thread that completes the future. So this method, before it completes
        `begun`, orders the current streams of its thread after the results.
        """
        order_after(self._events)
        begun.set_result(self._outputs if self._events else None)
