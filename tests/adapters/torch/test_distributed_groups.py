"""torch.distributed on backend "hvdlite": groups of some ranks, and their ends by `shutdown` and `abort`."""

import threading

import pytest
import torch
import torch.distributed as dist
from groups import EVERYONE, RANK, SIZE, WORLD, check, value, values, world  # noqa: F401
from support.limits import DEADLINE


def test_groups():
    """Many at once; torch tells only the members of each."""
    groups = [(members, dist.new_group(members)) for members in ([0], EVERYONE, EVERYONE[1:], [0, SIZE - 1])]
    works = []
    for members, group in groups:
        if RANK in members:
            assert dist.get_process_group_ranks(group) == members
            tensor = value(RANK)
            works.append((members, tensor, dist.all_reduce(tensor, group=group, async_op=True)))
            root = value(RANK)
            dist.broadcast(root, src=members[-1], group=group)
            check([root], [value(members[-1])])
    for members, tensor, work in reversed(works):
        work.wait()
        check([tensor], [values()[members].sum(0)])
    again = dist.new_group(EVERYONE[1:])  # of the same ranks as another
    if RANK in EVERYONE[1:]:
        dist.all_reduce(tensor := value(RANK), group=again)
        check([tensor], [values()[1:].sum(0)])
        dist.destroy_process_group(again)
        with pytest.raises(ValueError, match="the group was destroyed"):
            again.allreduce([tensor])
    dist.barrier()


def test_a_group_that_is_destroyed_lets_its_operations_end():
    """Later calls of any kind raise, on this rank; the others need not have called it yet."""
    group = dist.new_group()
    tensor = value(RANK)
    if RANK == 0:
        work = dist.all_reduce(tensor, group=group, async_op=True)
        dist.destroy_process_group(group)
        for call in (
            lambda: group.allreduce([torch.ones(1)]),
            lambda: group.send([torch.ones(1)], 0, 0),
            lambda: group.recv_anysource([torch.ones(1)], 0),
            lambda: group.barrier(),
        ):
            with pytest.raises(ValueError, match="the group was destroyed"):
                call()
    dist.barrier()
    if RANK == 0:
        work.wait()
    else:
        dist.all_reduce(tensor, group=group)
        dist.destroy_process_group(group)
    check([tensor], [values().sum(0)])


def test_who_waits_is_told_that_the_group_was_aborted(hvd):
    group = dist.new_group()
    waiting: list[BaseException] = []
    tensors = value(RANK), torch.zeros(3, 2, dtype=torch.float64)
    if RANK == 0:
        works = [dist.all_reduce(tensors[0], group=group, async_op=True), dist.irecv(tensors[1], 1, group=group)]

        def wait(work):
            try:
                work.wait()
            except hvd.HorovodInternalError as error:
                waiting.append(error)

        threads = [threading.Thread(target=wait, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        future = dist.irecv(torch.zeros(1), 1, tag=1, group=group).get_future()
        group.abort()
        for thread in threads:
            thread.join(DEADLINE)
        assert sorted(str(error).split(" in group")[0] for error in waiting) == [
            "torch.distributed.all_reduce",
            "torch.distributed.recv from rank 1 (tag 0)",
        ]
        assert all("this rank has aborted the group" in str(error) for error in waiting)
        with pytest.raises(RuntimeError, match="this rank has aborted the group"):
            future.wait()
        with pytest.raises(ValueError, match="the group was aborted"):
            group.barrier()
    WORLD.Barrier()
    if RANK != 0:  # for the others it goes on, and what was in flight ends
        dist.all_reduce(tensors[0], group=group)
        check([tensors[0]], [values().sum(0)])
    if RANK == 1:
        for tag, tensor in enumerate((value(1), torch.ones(1))):
            dist.send(tensor, 0, tag=tag, group=group)
    dist.barrier()
    dist.distributed_c10d._abort_process_group(group)
    assert group not in dist.distributed_c10d._world.pg_map
    dist.all_reduce(tensor := value(RANK))  # hvdlite stays initialised
    check([tensor], [values().sum(0)])
