"""A program for compute-sanitizer, which tools/gpu_check.sh runs: every kernel with odd sizes and misaligned places, on one
rank.
"""

import numpy as np
from support.driver_arrays import DriverArray, read

import hvdlite as hvd

COUNTS = (1, 3, 7, 8, 9, 127, 129, 1025, 65_537)


def main() -> None:
    hvd.init()
    for dtype in (np.float32, np.float16, np.float64, np.int32, np.int64, np.uint8):
        for offset in (0, 1, 3):
            values = [(np.arange(offset + count) % 100).astype(dtype) for count in COUNTS]
            arrays = [DriverArray.of(array).tail(offset) for array in values]
            for factors in ({}, {"prescale_factor": 2.0, "postscale_factor": 0.5}):
                name = f"{np.dtype(dtype).name}.{offset}.{len(factors)}"
                results = hvd.grouped_allreduce(arrays, op=hvd.Sum, name=name, **factors)
                for result, array in zip(results, values, strict=True):
                    got = read(result)
                    assert np.array_equal(got, array[offset:]), (name, got, array[offset:])
    many = [DriverArray.of(np.full(place % 17, place, np.float32)) for place in range(400)]
    for place, result in enumerate(hvd.grouped_allreduce_(many, op=hvd.Sum, name="many", prescale_factor=0.5)):
        assert np.array_equal(read(result), np.full(place % 17, place / 2, np.float32))
    hvd.shutdown()
    print("all values are right")


if __name__ == "__main__":
    main()
