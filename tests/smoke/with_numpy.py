"""NumPy arrays: each collective, an object, and a mismatch that leaves the engine usable."""

import numpy as np
from checks import assert_same_bits, refused

import hvdlite as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
total = size * (size + 1) // 2

for step in range(3):  # asked in full, known, known again
    values = np.arange(1000, dtype=np.float32) * (rank + 1)
    np.testing.assert_array_equal(hvd.allreduce(values, name="sum", op=hvd.Sum), np.arange(1000, dtype=np.float32) * total)
    halves = np.full(7, rank + step, dtype=np.float16)
    np.testing.assert_array_equal(hvd.allreduce(halves, name="mean"), np.full(7, step + (size - 1) / 2, np.float16))

group = hvd.grouped_allreduce([np.full(3, rank), np.full((2, 2), 1.5 * rank)], name="group", op=hvd.Max)
assert [part.max() for part in group] == [size - 1, 1.5 * (size - 1)]
np.testing.assert_array_equal(hvd.allgather(np.full(rank + 1, rank), name="rows"), np.repeat(range(size), range(1, size + 1)))
np.testing.assert_array_equal(hvd.broadcast(np.full(5, rank), 1, name="root"), np.ones(5))
received, splits = hvd.alltoall(np.arange(size) + 10 * rank, np.ones(size, np.int32), name="exchange")
np.testing.assert_array_equal(received, 10 * np.arange(size) + rank)
assert list(splits) == [1] * size
np.testing.assert_array_equal(hvd.reducescatter(np.full((size, 2), rank), name="part", op=hvd.Sum), [[total - size] * 2])
assert hvd.allgather_object({"rank": rank}) == [{"rank": other} for other in range(size)]

noise = np.random.default_rng(rank).standard_normal(100_003).astype(np.float32)
assert_same_bits([hvd.allreduce(noise, name="noise")], "allreduce of float32")

with refused(hvd.MismatchError, "shape differs", "'other'", "rank 1"):
    hvd.allreduce(np.ones(4 + rank), name="other")
assert hvd.allreduce(np.ones(1), name="after", op=hvd.Sum) == size
