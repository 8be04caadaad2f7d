"""The smallest program: hvdlite run -n 2 python numpy_allreduce.py. Each rank prints its array, the average and the maximum."""

import numpy as np

import hvdlite as hvd

hvd.init()
mine = np.arange(5.0) + 10 * hvd.rank()
mean = hvd.allreduce(mine)
largest = hvd.allreduce(mine, op=hvd.Max)
print(f"rank {hvd.rank()} of {hvd.size()}: {mine} -> average {mean}, largest {largest}")
