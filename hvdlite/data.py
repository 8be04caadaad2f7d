"""Data loaders that read ahead in a thread: the classes of ``horovod.data``, for any framework.

    class Batches(BaseDataLoader): ...             # reads: __len__ and _iterate

    class AsyncBatches(AsyncDataLoaderMixin, Batches): ...

    for batch in AsyncBatches(async_loader_queue_size=8): ...

The thread only reads. It must call no collective, because collectives belong to the thread that trains.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]


class BaseDataLoader:
    """The interface of a loader: a subclass defines ``__len__`` and `_iterate`."""

    def __len__(self) -> int:
        """The number of batches of one pass over the data."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Reads the batches of one pass over the data, one after the other."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        """One pass over the batches."""
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        """Returns the batch, or what a subclass makes of it, such as a reshaped one. Runs in the thread that uses the batch."""
        return batch


class AsyncDataLoaderMixin:
    """Reads batches ahead of their use: a mixin, which stands before the `BaseDataLoader` among the base classes.

    Each pass over the data has its own thread, which runs `_iterate`. The thread starts when the first batch is requested, and
    ends with the pass: after the last batch, or when the iterator is closed, dropped or left with ``break``. So a pass uses
    values that were set before the pass, such as the epoch of a sampler, and never returns batches of an earlier pass. If
    `_iterate` raises an exception, the iterator raises the same exception in place of the batch.

    Args:
        async_loader_queue_size: the largest number of batches that are read ahead; 0: no thread, and each batch is read when
            it is requested.
        debug_data_loader: log (level INFO), for each batch that is requested, how many batches were ready?
        *args: for the next base class.
        **kwargs: for the next base class.
    """

    def __init__(self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any, **kwargs: Any) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._passes: weakref.WeakSet[_Pass] = weakref.WeakSet()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """Ends the current passes, so that their iterators stop. Waits until `_iterate` has read its current batch."""
        for running in list(self._passes):
            running.close()

    def __iter__(self) -> Iterator[Any]:
        """One pass over the batches, which a thread reads ahead."""
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        running = _Pass(self._iterate, self.async_loader_queue_size)  # type: ignore[attr-defined]
        self._passes.add(running)
        try:
            for batch, ready in running:
                if self.debug_data_loader:
                    logging.getLogger("hvdlite").info("data loader: %d batches were ready", ready)
                yield self._process_batch(batch)  # type: ignore[attr-defined]
        finally:
            running.close()


class _Pass:
    """One pass over the data: a thread that reads, a queue of the batches that were read, and the iterator over the queue."""

    def __init__(self, iterate: Callable[[], Iterator[Any]], limit: int) -> None:
        self._iterate = iterate
        self._limit = limit
        self._ready: deque[Any] = deque()
        self._error: BaseException | None = None
        self._ended = False  # has the reading thread ended?
        self._closed = False  # has the user of the iterator ended the pass?
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read, name="hvdlite-data-loader", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yields each batch with the length of the queue at that time; raises at the end what the reading thread raised."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
                if self._closed:
                    return
                ready = len(self._ready)
                if not ready:
                    break
                batch = self._ready.popleft()
                self._changed.notify_all()
            yield batch, ready
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Ends the thread and drops what it has read."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not threading.current_thread():  # which the collector of dropped iterators may run in
            self._thread.join()

    def _read(self) -> None:
        try:
            batches = self._iterate()
            for batch in batches:
                with self._changed:
                    self._ready.append(batch)
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._closed or len(self._ready) < self._limit)
                    if self._closed:
                        break
            close = getattr(batches, "close", None)  # a generator has to clean up in the thread that ran it
            if close is not None:
                close()
        except BaseException as error:  # any exception, to raise it in the user's thread
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
