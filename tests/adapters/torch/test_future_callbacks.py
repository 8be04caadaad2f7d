"""Collectives that callbacks of futures start pair with their like on the other ranks, whenever the callbacks run."""

import sys
import threading

import torch
import torch.distributed as dist
from groups import EVERYONE, RANK, SIZE, check, world  # noqa: F401
from support.limits import dawdle
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from reference import mse, network, part_of, whole_batch  # isort: skip


def late(work):
    """A future of a collective that has ended on odd ranks before anything is attached to it."""
    future = work.get_future()
    if RANK % 2:
        work.wait()
    return future


def twice(tensor):
    """Adds the tensor up over the ranks, and the sums again: two steps, the second one in a callback."""
    first = late(dist.all_reduce(tensor, async_op=True))
    return first.then(lambda done: late(dist.all_reduce(done.value()[0], async_op=True)).wait())


def test_second_steps_meet_their_like(world):  # noqa: F811
    """On odd ranks each callback runs as it is attached; on the others when the operations happen to end."""
    for turn in range(5):
        tensors = [torch.full((3,), 100.0 * turn + 10 * place + RANK) for place in range(6)]
        for future in [twice(tensor) for tensor in tensors]:
            future.wait()
        sums = [sum(100.0 * turn + 10 * place + rank for rank in EVERYONE) for place in range(6)]
        check(tensors, [torch.full((3,), SIZE * each) for each in sums])


def test_chains_and_several_callbacks_of_one_future(world):  # noqa: F811
    first, second, third = (torch.full((2,), float(RANK + 1 + salt)) for salt in (0, 10, 20))
    begun = late(dist.all_reduce(torch.ones(1), async_op=True))
    ends = [
        begun.then(lambda _: dist.all_reduce(first)).then(lambda _: dist.all_reduce(second)),
        begun.then(lambda _: dist.all_reduce(third)),
    ]
    begun.add_done_callback(lambda _: dist.all_reduce(second.clone()))
    for end in ends:
        end.wait()
    dist.barrier()
    check([first, second, third], [torch.full((2,), float(sum(rank + 1 + salt for rank in EVERYONE))) for salt in (0, 10, 20)])


def test_threads_that_ask_at_the_same_moment_get_one_future(world, monkeypatch):  # noqa: F811
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(50):
            work = dist.all_reduce(torch.ones(1), async_op=True)
            numbered, moment, found = work._numbered, threading.Barrier(4), []
            monkeypatch.setattr(work, "_numbered", lambda future, numbered=numbered: (dawdle(20), numbered(future)))

            def ask(work=work, moment=moment, found=found):
                moment.wait()
                found.append(work.get_future())

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(future is found[0] for future in found)
            check(found[0].wait(), [torch.full((1,), float(SIZE))])
    finally:
        sys.setswitchinterval(interval)


def test_a_callback_of_one_group_may_use_another(world):  # noqa: F811
    other = dist.new_group(EVERYONE)
    tensors = [torch.full((1,), RANK + 10.0 * place) for place in range(4)]
    ends = [
        late(dist.all_reduce(torch.ones(1), async_op=True)).then(lambda _, tensor=tensor: dist.all_reduce(tensor, group=other))
        for tensor in tensors
    ]
    dist.all_reduce(torch.ones(5), group=other)
    for end in ends:
        end.wait()
    check(tensors, [torch.full((1,), sum(rank + 10.0 * place for rank in EVERYONE)) for place in range(4)])
    dist.destroy_process_group(other)


def hooked(hook):
    """Trains on this rank's part of a batch, with buckets of one parameter each, and gives the gradients of each step."""
    model = DistributedDataParallel(network().float(), bucket_cap_mb=0.0001)
    model.register_comm_hook(*hook)
    for step in range(4):
        model.zero_grad()
        mse(model, *(each.float() for each in part_of(whole_batch(step, SIZE), RANK))).backward()
        yield [param.grad.clone() for param in model.parameters()]


def two_steps(state, bucket):
    """The mean, and then the largest mean, which is the same."""
    first = late(dist.all_reduce(bucket.buffer().div_(SIZE), async_op=True))
    return first.then(lambda done: late(dist.all_reduce(done.value()[0], dist.ReduceOp.MAX, async_op=True)).wait()[0])


def test_a_hook_of_two_steps_with_several_buckets(world):  # noqa: F811
    for ours, wanted in zip(hooked((None, two_steps)), hooked((None, default_hooks.allreduce_hook)), strict=True):
        check(ours, wanted)


def test_powersgd(world):  # noqa: F811
    """torch's hook of three steps: all ranks have the same gradients."""
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=0.5)
    for grads in hooked((state, powerSGD_hook.powerSGD_hook)):
        flat = torch.cat([grad.ravel() for grad in grads])
        assert torch.isfinite(flat).all()
        assert flat.abs().max() > 0
        everyones = [torch.empty_like(flat) for _ in EVERYONE]
        dist.all_gather(everyones, flat)
        assert all(torch.equal(flat, each) for each in everyones)
