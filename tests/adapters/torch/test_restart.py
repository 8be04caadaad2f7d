"""What outlives hvdlite's shutdown or a group of torch.distributed, and what must not."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from reference import Pair, adam, assert_close, mse, network, part_of, whole_batch
from support.world import WORLD

from hvdlite.errors import InvalidArgumentError, NotInitializedError


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


def test_a_sharded_optimizer_needs_a_whole_state_among_other_ranks(hvd):
    ranks = list(range(WORLD.size))
    model, twin = network(), network()
    plain = adam(twin.parameters())
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=True)

    def backward(step):
        whole = whole_batch(step, hvd.size())
        for trained, on, batch in ((optimizer, model, part_of(whole, hvd.rank())), (plain, twin, whole)):
            trained.zero_grad()
            mse(on, *batch).backward()

    backward(0)
    optimizer.step()
    plain.step()
    saved = optimizer.state_dict()
    hvd.shutdown()
    hvd.init([*ranks[1:], 0])  # each process has another rank
    try:
        backward(1)
        with pytest.raises(InvalidArgumentError, match="the job has other ranks than before"):
            optimizer.step()
        optimizer.load_state_dict(saved)
        backward(1)
        optimizer.step()
        plain.step()
        assert_close(list(model.parameters()), list(twin.parameters()))
    finally:
        hvd.shutdown()
        hvd.init()


def test_a_shutdown_leaves_the_whole_state_that_a_sharded_optimizer_has_loaded(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters(), shard=True)
    mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
    optimizer.step()
    saved = optimizer.state_dict()
    hvd.shutdown()
    optimizer.load_state_dict(saved)
    with pytest.raises(NotInitializedError):
        optimizer.state_dict()
    hvd.init()
    for number, state in optimizer.state_dict()["state"].items():
        assert_close(list(state.values()), list(saved["state"][number].values()))


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
