"""An example for each name of data.md. The reference shows it below the name; the tests run it on two ranks."""

import numpy as np

import hvdlite as hvd
import hvdlite.data

hvd.init()


def BaseDataLoader():
    class Batches(hvdlite.data.BaseDataLoader):
        def __len__(self):
            return 3

        def _iterate(self):
            for number in range(3):
                yield np.full(2, number)

    assert [batch.tolist() for batch in Batches()] == [[0, 0], [1, 1], [2, 2]]


def AsyncDataLoaderMixin():
    class Batches(hvdlite.data.BaseDataLoader):
        def __len__(self):
            return 3

        def _iterate(self):
            yield from range(3)  # for example, reads from a disk

    class AsyncBatches(hvdlite.data.AsyncDataLoaderMixin, Batches):  # the mixin comes first
        pass

    loader = AsyncBatches(async_loader_queue_size=8)
    assert list(loader) == [0, 1, 2]  # a thread has read ahead
    loader.close_async_loader()
