"""Data loaders that read ahead: order, errors, and threads that end."""

import gc
import logging
import sys
import threading

import pytest
from support.limits import eventually

from hvdlite.data import AsyncDataLoaderMixin, BaseDataLoader


class Numbers(BaseDataLoader):
    """Batches from a list; a batch that is an exception is raised. Notes what was read and by which thread."""

    def __init__(self, batches, scale=1):
        self.batches = batches
        self.scale = scale
        self.read = []
        self.cleaned_up_by = []

    def __len__(self):
        return len(self.batches)

    def _iterate(self):
        try:
            for batch in self.batches:
                self.read.append((batch, threading.current_thread().name))
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            self.cleaned_up_by.append(threading.current_thread().name)

    def _process_batch(self, batch):
        return None if batch is None else batch * self.scale


class AsyncNumbers(AsyncDataLoaderMixin, Numbers):
    pass


READER = "hvdlite-data-loader"


def readers():
    return [thread for thread in threading.enumerate() if thread.name == READER]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert not readers()


def test_the_interface():
    assert list(Numbers([1, 2, 3], scale=10)) == [10, 20, 30]
    for method in (BaseDataLoader().__len__, BaseDataLoader()._iterate):
        with pytest.raises(NotImplementedError):
            method()
    assert BaseDataLoader()._process_batch("as it is") == "as it is"


@pytest.mark.parametrize("size", [0, 1, 2, 64])
def test_every_pass_gives_all_batches_in_order(size):
    loader = AsyncNumbers(size, batches=list(range(10)), scale=2)
    assert len(loader) == 10
    for _ in range(3):
        assert list(loader) == [2 * number for number in range(10)]
    assert not readers()
    assert {name for _, name in loader.read} == {READER if size else threading.current_thread().name}


def test_positional_arguments_are_horovods():
    loader = AsyncNumbers(3, True, [1], 5)
    assert (loader.async_loader_queue_size, loader.debug_data_loader, loader.scale) == (3, True, 5)


def test_batches_that_are_none_or_empty_end_nothing():
    assert list(AsyncNumbers(4, batches=[None, 0, "", None])) == [None, 0, "", None]
    assert list(AsyncNumbers(4, batches=[])) == []


@pytest.mark.parametrize("error", [ValueError("a broken file"), KeyboardInterrupt("of any kind")], ids=repr)
@pytest.mark.parametrize("size", [1, 64])
def test_errors_come_where_the_batch_would_have_come(error, size):
    loader = AsyncNumbers(size, batches=[1, 2, error, 4])
    seen = []
    with pytest.raises(type(error)) as caught:
        seen.extend(loader)
    assert caught.value is error
    assert "_iterate" in [entry.name for entry in caught.traceback]  # it says where in the reader
    assert seen == [1, 2]
    loader.batches = [7]
    assert list(loader) == [7]


def test_no_more_is_read_than_has_room():
    room = 3
    loader = AsyncNumbers(room, batches=list(range(100)))
    iterator = iter(loader)
    assert next(iterator) == 0
    running = next(iter(loader._passes))

    def reader_waits():
        with running._changed:
            return bool(running._changed._waiters)

    assert eventually(reader_waits)  # for room: now it goes no further by itself
    assert len(running._ready) == room
    assert len(loader.read) == room + 1
    assert next(iterator) == 1
    iterator.close()
    assert len(loader.read) <= room + 2


@pytest.mark.parametrize("how", ["break", "dropped", "closed", "close_async_loader", "error of the user"])
def test_a_pass_that_is_left_early_ends_its_thread(how):
    loader = AsyncNumbers(2, batches=list(range(100)))
    if how == "break":
        for batch in loader:
            if batch == 5:
                break
    elif how == "error of the user":
        with pytest.raises(ZeroDivisionError):
            [1 // (3 - batch) for batch in loader]
    else:
        iterator = iter(loader)
        assert next(iterator) == 0
        assert len(readers()) == 1
        if how == "closed":
            iterator.close()
        elif how == "close_async_loader":
            loader.close_async_loader()
            assert next(iterator, "stopped") == "stopped"
        del iterator
    gc.collect()
    assert not readers()
    assert loader.cleaned_up_by == [READER]
    loader.read.clear()
    assert list(loader) == list(range(100))  # the next pass begins at the beginning


def test_the_reading_thread_may_collect_the_dropped_iterator(monkeypatch):
    complaints, dropped = [], threading.Event()
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)

    class Collects(AsyncNumbers):
        def _iterate(self):
            yield from super()._iterate()
            dropped.wait()
            gc.collect()

    loader = Collects(3, batches=[1, 2])
    cycle = [iter(loader)]
    cycle.append(cycle)
    assert next(cycle[0]) == 1
    reads = next(iter(loader._passes))._thread
    gc.disable()
    try:
        del cycle
        dropped.set()
        reads.join(60)
    finally:
        gc.enable()
    assert complaints == []


def test_closing_a_loader_that_has_not_run():
    AsyncNumbers(2, batches=[1]).close_async_loader()
    AsyncNumbers(0, batches=[1]).close_async_loader()


def test_two_passes_at_once():
    loader = AsyncNumbers(2, batches=list(range(20)))
    assert list(zip(loader, loader, strict=True)) == [(number, number) for number in range(20)]


def test_a_pass_sees_what_was_set_before_it():
    loader = AsyncNumbers(64, batches=[0])
    for epoch in range(5):
        loader.batches = [epoch, epoch]
        assert list(loader) == [epoch, epoch]


def test_it_says_how_many_lay_ready(caplog):
    with caplog.at_level(logging.INFO, "hvdlite"):
        list(AsyncNumbers(2, batches=[1, 2]))
        assert not caplog.records
        list(AsyncNumbers(2, True, batches=[1, 2]))
    assert len(caplog.records) == 2
    assert all("batches were ready" in record.message for record in caplog.records)
