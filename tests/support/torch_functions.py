"""A case with known values for each function of torch.distributed. torch_functions_page.py writes them into a page."""

import traceback
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["CASES", "outcome_of"]

ROOT = Path(__file__).parents[2]


class Case(NamedTuple):
    """A row of the page.

    Attributes:
        call: a function that gets torch, torch.distributed, rank and size, and asserts the results.
        more: a note for the page, such as an advantage of hvdlite.
    """

    call: Callable[[Any, Any, int, int], None]
    more: str = ""


def _ones(torch: Any, rank: int, *shape: int) -> Any:
    return torch.full(shape or (2, 3), rank + 1.0)


def _same(found: Any, expected: Any) -> None:
    assert found.tolist() == expected.tolist(), f"{found} is not {expected}"


def _reduce(op: str, expected: Callable[[int], float], dtype: str = "int64") -> Callable[..., None]:
    def call(torch: Any, dist: Any, rank: int, size: int) -> None:
        tensor = torch.full((3,), rank + 1, dtype=getattr(torch, dtype))
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        assert tensor.tolist() == [expected(size)] * 3

    return call


def _all_reduce(torch: Any, dist: Any, rank: int, size: int) -> None:
    work = dist.all_reduce(tensor := _ones(torch, rank), async_op=True)
    work.wait()
    _same(tensor, torch.full((2, 3), size * (size + 1) / 2))


def _all_reduce_coalesced(torch: Any, dist: Any, rank: int, size: int) -> None:
    tensors = [_ones(torch, rank), _ones(torch, rank, 4)]
    dist.all_reduce_coalesced(tensors)
    assert all(each.unique().tolist() == [size * (size + 1) / 2] for each in tensors)


def _sparse(torch: Any, dist: Any, rank: int, size: int) -> None:
    tensor = torch.eye(size)[rank].to_sparse()
    dist.all_reduce(tensor)
    assert tensor.to_dense().tolist() == [1.0] * size


def _all_gather(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.all_gather(parts := [torch.zeros(2, 3) for _ in range(size)], _ones(torch, rank))
    assert [part[0, 0].item() for part in parts] == [place + 1.0 for place in range(size)]


def _all_gather_uneven(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.all_gather(parts := [torch.zeros(place + 1) for place in range(size)], _ones(torch, rank, rank + 1))
    assert [part.tolist() for part in parts] == [[place + 1.0] * (place + 1) for place in range(size)]


def _all_gather_coalesced(torch: Any, dist: Any, rank: int, size: int) -> None:
    lists = [[torch.zeros(2, 3), torch.zeros(2)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [_ones(torch, rank), _ones(torch, rank, 2)])
    assert [part[0].item() for _, part in lists] == [place + 1.0 for place in range(size)]


def _gather_rows(name: str) -> Callable[..., None]:
    def call(torch: Any, dist: Any, rank: int, size: int) -> None:
        getattr(dist, name)(output := torch.zeros(2 * size), _ones(torch, rank, 2))
        assert output.tolist() == [place // 2 + 1.0 for place in range(2 * size)]

    return call


def _scatter_rows(name: str) -> Callable[..., None]:
    def call(torch: Any, dist: Any, rank: int, size: int) -> None:
        getattr(dist, name)(output := torch.zeros(2), torch.arange(2.0 * size) * (rank + 1))
        factor = size * (size + 1) / 2
        assert output.tolist() == [factor * (2 * rank + place) for place in range(2)]

    return call


def _reduce_scatter(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.reduce_scatter(output := torch.zeros(2), [_ones(torch, rank, 2) * place for place in range(size)])
    assert output.tolist() == [size * (size + 1) / 2 * rank] * 2


def _all_to_all(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.all_to_all(parts := [torch.zeros(1) for _ in range(size)], [torch.tensor([10.0 * rank + to]) for to in range(size)])
    assert [part.item() for part in parts] == [10.0 * place + rank for place in range(size)]


def _all_to_all_single(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.all_to_all_single(output := torch.zeros(size), torch.arange(float(size)) + 10 * rank)
    assert output.tolist() == [10.0 * place + rank for place in range(size)]


def _broadcast(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.broadcast(tensor := _ones(torch, rank), src=size - 1)
    _same(tensor, _ones(torch, size - 1))


def _reduce_to(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.reduce(tensor := _ones(torch, rank), dst=1)
    assert rank != 1 or tensor.unique().tolist() == [size * (size + 1) / 2]


def _gather(torch: Any, dist: Any, rank: int, size: int) -> None:
    parts = [torch.zeros(2, 3) for _ in range(size)] if rank == 1 else None
    dist.gather(_ones(torch, rank), parts, dst=1)
    assert parts is None or [part[0, 0].item() for part in parts] == [place + 1.0 for place in range(size)]


def _scatter(torch: Any, dist: Any, rank: int, size: int) -> None:
    parts = [_ones(torch, place) for place in range(size)] if rank == 1 else None
    dist.scatter(output := torch.zeros(2, 3), parts, src=1)
    _same(output, _ones(torch, rank))


def _barrier(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.barrier()


def _monitored_barrier(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.monitored_barrier()


def _around(start: Callable[..., Any]) -> Callable[..., None]:
    def call(torch: Any, dist: Any, rank: int, size: int) -> None:
        right, left = (rank + 1) % size, (rank - 1) % size
        got = torch.zeros(2, 3)
        start(torch, dist, rank, right, left, got)
        _same(got, _ones(torch, left))

    return call


def _send_recv(torch: Any, dist: Any, rank: int, right: int, left: int, got: Any) -> None:
    if rank:
        dist.recv(got, left)
        dist.send(_ones(torch, rank), right)
    else:
        dist.send(_ones(torch, rank), right)
        dist.recv(got, left)


def _isend_irecv(torch: Any, dist: Any, rank: int, right: int, left: int, got: Any) -> None:
    works = [dist.irecv(got, left), dist.isend(_ones(torch, rank), right)]
    for work in works:
        work.wait()


def _any_source(torch: Any, dist: Any, rank: int, right: int, left: int, got: Any) -> None:
    work = dist.isend(_ones(torch, rank), right)
    assert dist.recv(got) == left
    work.wait()


def _batch(torch: Any, dist: Any, rank: int, right: int, left: int, got: Any) -> None:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, _ones(torch, rank), right)]):
        work.wait()


def _object_lists(torch: Any, dist: Any, rank: int, size: int) -> None:
    if rank == 0:
        dist.send_object_list([{"rank": 0}, "text"], dst=1)
    if rank == 1:
        dist.recv_object_list(got := [None, None], src=0)
        assert got == [{"rank": 0}, "text"]


def _all_gather_object(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.all_gather_object(found := [None] * size, {"rank": rank})
    assert found == [{"rank": place} for place in range(size)]


def _gather_object(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.gather_object({"rank": rank}, found := [None] * size if rank == 0 else None)
    assert found is None or found == [{"rank": place} for place in range(size)]


def _broadcast_objects(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.broadcast_object_list(objects := [rank, "text"] if rank == 0 else [None, None], src=0)
    assert objects == [0, "text"]


def _scatter_objects(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.scatter_object_list(got := [None], [{"for": place} for place in range(size)] if rank == 0 else None, src=0)
    assert got == [{"for": rank}]


def _new_group(torch: Any, dist: Any, rank: int, size: int) -> None:
    groups = [dist.new_group(ranks) for ranks in ([size - 1], list(range(size)), [0])]
    dist.all_reduce(tensor := torch.ones(1), group=groups[1])
    assert tensor.item() == size
    assert (groups[2] == dist.GroupMember.NON_GROUP_MEMBER) == (rank != 0)
    for group in groups:
        if group != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


def _subgroups(torch: Any, dist: Any, rank: int, size: int) -> None:
    own, _ = dist.new_subgroups(1)
    dist.all_reduce(tensor := torch.ones(1), group=own)
    assert tensor.item() == 1


def _enumerated(torch: Any, dist: Any, rank: int, size: int) -> None:
    own, _ = dist.new_subgroups_by_enumeration([[place] for place in range(size)])
    dist.all_reduce(tensor := torch.ones(1), group=own)
    assert tensor.item() == 1


def _split_group(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.split_group(split_ranks=[[place] for place in range(size)])


def _shrink_group(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.shrink_group([size - 1])


def _premultiplied(torch: Any, dist: Any, rank: int, size: int) -> None:
    dist.all_reduce(tensor := _ones(torch, rank), dist._make_nccl_premul_sum(0.5))
    assert tensor.unique().tolist() == [size * (size + 1) / 4]


def _wait_timeout(torch: Any, dist: Any, rank: int, size: int) -> None:
    work = dist.all_reduce(tensor := torch.ones(1), async_op=True)
    assert work.wait(timedelta(seconds=60))
    assert tensor.item() == size


def _future(torch: Any, dist: Any, rank: int, size: int) -> None:
    future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] * 2).wait().item() == 2 * size


def _coalescing(torch: Any, dist: Any, rank: int, size: int) -> None:
    with dist._coalescing_manager(async_ops=True) as manager:
        tensors = [_ones(torch, rank) for _ in range(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(tensor.unique().tolist() == [size * (size + 1) / 2] for tensor in tensors)


def _asks(torch: Any, dist: Any, rank: int, size: int) -> None:
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    assert dist.get_process_group_ranks(dist.group.WORLD) == list(range(size))
    assert dist.get_group_rank(dist.group.WORLD, 1) == dist.get_global_rank(dist.group.WORLD, 1) == 1
    assert dist.is_initialized()
    assert dist.is_backend_available(dist.get_backend())


def _functional(torch: Any, dist: Any, rank: int, size: int) -> None:
    from torch.distributed import _functional_collectives as functional

    summed = functional.all_reduce(_ones(torch, rank), "sum", dist.group.WORLD)
    assert functional.wait_tensor(summed).unique().tolist() == [size * (size + 1) / 2]


_BITS = "gathers all ranks' tensors, and each rank combines them"
# The cases by the text of the first column. Functions of torch that are missing start or end groups, which all cases do.
CASES: Mapping[str, Case] = {
    "all_reduce": Case(_all_reduce, "the sum of 16-bit floats is rounded once"),
    "all_reduce of a sparse tensor": Case(_sparse),
    "ReduceOp.SUM": Case(_reduce("SUM", lambda size: size * (size + 1) // 2)),
    "ReduceOp.AVG": Case(_reduce("AVG", lambda size: (size + 1) / 2, "float32")),
    "ReduceOp.MIN": Case(_reduce("MIN", lambda size: 1)),
    "ReduceOp.MAX": Case(_reduce("MAX", lambda size: size)),
    "ReduceOp.PRODUCT": Case(_reduce("PRODUCT", lambda size: 2 if size == 2 else 6)),
    "ReduceOp.BAND": Case(_reduce("BAND", lambda size: 0), _BITS),
    "ReduceOp.BOR": Case(_reduce("BOR", lambda size: 3), _BITS),
    "ReduceOp.BXOR": Case(_reduce("BXOR", lambda size: 3 if size == 2 else 0), _BITS),
    "ReduceOp.PREMUL_SUM": Case(_premultiplied),
    "all_reduce_coalesced": Case(_all_reduce_coalesced),
    "reduce": Case(_reduce_to),
    "broadcast": Case(_broadcast),
    "all_gather": Case(_all_gather),
    "all_gather of different sizes": Case(_all_gather_uneven),
    "all_gather_coalesced": Case(_all_gather_coalesced),
    "all_gather_into_tensor": Case(_gather_rows("all_gather_into_tensor")),
    "all_gather_single": Case(_gather_rows("all_gather_single")),
    "reduce_scatter": Case(_reduce_scatter),
    "reduce_scatter_tensor": Case(_scatter_rows("reduce_scatter_tensor"), "one collective; gloo makes one for each rank"),
    "reduce_scatter_single": Case(_scatter_rows("reduce_scatter_single"), "as reduce_scatter_tensor"),
    "gather": Case(_gather),
    "scatter": Case(_scatter),
    "all_to_all": Case(_all_to_all),
    "all_to_all_single": Case(_all_to_all_single),
    "barrier": Case(_barrier),
    "monitored_barrier": Case(_monitored_barrier, "also without it, ranks that wait for each other get an error"),
    "send, recv": Case(_around(_send_recv), "two sends of more than 8 KiB towards each other get an error within two seconds"),
    "isend, irecv": Case(_around(_isend_irecv), "in any order: a receive that starts early does not delay sends"),
    "recv from any source": Case(_around(_any_source)),
    "batch_isend_irecv": Case(_around(_batch)),
    "send_object_list, recv_object_list": Case(_object_lists),
    "all_gather_object": Case(_all_gather_object),
    "gather_object": Case(_gather_object),
    "broadcast_object_list": Case(_broadcast_objects),
    "scatter_object_list": Case(_scatter_objects),
    "new_group": Case(_new_group, "only the members of the new group have to call it"),
    "new_subgroups": Case(_subgroups),
    "new_subgroups_by_enumeration": Case(_enumerated),
    "split_group": Case(_split_group),
    "shrink_group": Case(_shrink_group),
    "Work.wait(timeout)": Case(_wait_timeout, "the error names the operation and the group; the operation continues"),
    "Work.get_future": Case(_future, "callbacks may start collectives and wait for them"),
    "_coalescing_manager": Case(_coalescing),
    "functional collectives": Case(_functional),
    "get_rank, get_world_size, get_process_group_ranks, get_group_rank, get_global_rank, is_initialized": Case(_asks),
}


def outcome_of(case: Case, torch: Any, dist: Any, rank: int, size: int) -> str:
    """Runs a case on this rank. Returns "works", or the library that refuses the call with its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about names that it will remove
            case.call(torch, dist, rank, size)
    except AttributeError as error:
        return f"not in this torch ({error})" if "has no attribute" in str(error) else f"AttributeError: {error}"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file = Path(frame.filename)
        mine = "hvdlite" in file.parts and ROOT in file.parents and "tests" not in file.parts
        where = "hvdlite" if mine else f"torch ({file.name}:{frame.lineno})" if "torch" in file.parts else "C++"
        return f"refused by {where}: {type(error).__name__}: {str(error).strip().splitlines()[0][:110]}"
    return "works"
