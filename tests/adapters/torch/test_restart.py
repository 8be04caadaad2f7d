"""What outlives hvdlite's shutdown or a group of torch.distributed, and what must not."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from reference import Pair, adam, mse
from support.world import WORLD


def test_shutdown_and_init(hvd):
    pair = Pair(hvd, adam)
    for step in range(6):
        part, whole = pair.parts(step)
        if step in (2, 4):
            hvd.shutdown()
            with pytest.raises(ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)") as caught:
                mse(pair.model, *part).backward()
            assert isinstance(caught.value, RuntimeError)  # which is what Horovod raises here
            hvd.init()
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_an_operation_of_a_destroyed_group_meets_none_of_the_next(hvd):
    """torch gives the next group the same name, and its first operation the same number."""
    import hvdlite.torch.distributed

    dist.init_process_group(hvdlite.torch.distributed.BACKEND)
    left = torch.full((2,), 100.0)
    if WORLD.rank == 0:
        work = dist.all_reduce(left, async_op=True)
        with pytest.raises(hvd.HorovodInternalError, match=r"has not ended within"):
            work.wait(timedelta(milliseconds=1))
    dist.destroy_process_group()
    dist.init_process_group(hvdlite.torch.distributed.BACKEND)
    tensor = torch.full((2,), WORLD.rank + 1.0)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [sum(range(1, WORLD.size + 1))] * 2
    assert left.tolist() == [100.0] * 2
    dist.destroy_process_group()
    hvd.shutdown()  # which ends what is left
    hvd.init()
