"""torch.distributed on backend "hvdlite": each collective against what it must give, groups, errors, the store."""

from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist
from groups import EVERYONE, RANK, SIZE, WORLD, check, gloo, value, values, waited, world  # noqa: F401
from reference import assert_close, assert_same_bits
from support.limits import DEADLINE

# --- collectives ----------------------------------------------------------------------------------------------------------


def test_rank_size_and_name(world):  # noqa: F811
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (RANK, SIZE, "hvdlite")
    assert "0" in world.group_name
    assert f"rank {RANK} of {SIZE}" in repr(world)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16])
@pytest.mark.parametrize("op", ["SUM", "AVG", "MIN", "MAX", "PRODUCT"])
def test_all_reduce(op, dtype):
    if op == "PRODUCT" and dtype is torch.bfloat16:
        pytest.skip("products of bfloat16 are rounded in an order of their own")
    stacked = values(dtype=dtype).double()
    expected = {
        "SUM": stacked.sum(0),
        "AVG": stacked.mean(0) if dtype.is_floating_point else stacked.sum(0).div(SIZE, rounding_mode="trunc"),
        "MIN": stacked.amin(0),
        "MAX": stacked.amax(0),
        "PRODUCT": stacked.prod(0),
    }[op]
    tensor = value(RANK, dtype=dtype)
    for _ in waited(dist.all_reduce, tensor, getattr(dist.ReduceOp, op)):
        assert_close([tensor.double()], [expected], {torch.float32: 1e-6, torch.bfloat16: 8e-3}.get(dtype, 1e-12))
        assert_same_bits([tensor])
        tensor.copy_(value(RANK, dtype=dtype))


def test_all_reduce_of_a_tensor_with_gaps():
    tensor = torch.zeros(3, 4, dtype=torch.float64)
    tensor[:, ::2] = value(RANK)
    dist.all_reduce(tensor[:, ::2])
    check(tensor[:, ::2], values().sum(0))
    assert not tensor[:, 1::2].any()


def test_all_reduce_of_complex_numbers():
    tensor = torch.complex(value(RANK), value(RANK, salt=1))
    dist.all_reduce(tensor)
    check([tensor.real, tensor.imag], [values().sum(0), values(salt=1).sum(0)])


def test_all_reduce_coalesced(world):  # noqa: F811
    tensors = [value(RANK), value(RANK, (5,), salt=1), torch.empty(0)]
    world.allreduce_coalesced(tensors).wait()
    check(tensors, [values().sum(0), values(shape=(5,), salt=1).sum(0), torch.empty(0)])


@pytest.mark.parametrize("op", ["SUM", "AVG"])
def test_all_reduce_of_sparse_tensors(op):
    def rows(rank):  # one of its own, and a common one twice
        return torch.sparse_coo_tensor([[rank, SIZE, SIZE]], value(rank), (SIZE + 2, 2))

    for _ in waited(dist.all_reduce, tensor := rows(RANK), getattr(dist.ReduceOp, op)):
        expected = sum(rows(rank).to_dense() for rank in EVERYONE) / (SIZE if op == "AVG" else 1)
        check([tensor.to_dense()], [expected])
        tensor.copy_(rows(RANK))


@pytest.mark.parametrize(("op", "combine"), [("BAND", np.bitwise_and), ("BOR", np.bitwise_or), ("BXOR", np.bitwise_xor)])
def test_reductions_of_bits(op, combine):
    everyones = np.stack([(np.arange(2 * SIZE) * 37 + 91 * rank) % 251 for rank in EVERYONE])
    expected = torch.from_numpy(combine.reduce(everyones))
    operator = getattr(dist.ReduceOp, op)
    for _ in waited(dist.all_reduce, tensor := torch.from_numpy(everyones[RANK].copy()), operator):
        assert torch.equal(tensor, expected)
        tensor.copy_(torch.from_numpy(everyones[RANK]))
    dist.reduce(tensor, dst=SIZE - 1, op=operator)
    assert torch.equal(tensor, expected if RANK == SIZE - 1 else torch.from_numpy(everyones[RANK]))
    mine = torch.from_numpy(everyones[RANK])
    output, own = torch.zeros(2, dtype=torch.int64), expected[2 * RANK : 2 * RANK + 2]
    dist.reduce_scatter_tensor(output, mine, op=operator)
    assert torch.equal(output, own)
    sizes = [3, 1] + [2] * (SIZE - 2)
    output = torch.zeros(sizes[RANK], dtype=torch.int64)
    dist.reduce_scatter(output, list(mine.split(sizes)), op=operator)
    assert torch.equal(output, expected.split(sizes)[RANK])


def test_broadcast():
    for root in EVERYONE:
        for _ in waited(dist.broadcast, tensor := value(RANK), src=root):
            check([tensor], [value(root)])
            tensor.copy_(value(RANK))


def test_reduce():
    for root in EVERYONE:
        tensor = value(RANK)
        for _ in waited(dist.reduce, tensor, dst=root):
            check([tensor], [values().sum(0) if root == RANK else value(RANK)])
            tensor.copy_(value(RANK))


def test_all_gather():
    outputs = [torch.zeros(3, 2, dtype=torch.float64) for _ in EVERYONE]
    for _ in waited(dist.all_gather, outputs, value(RANK)):
        check(outputs, values())
        for output in outputs:
            output.zero_()
    uneven = [torch.zeros(rank + 1) for rank in EVERYONE]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK)))
    check(uneven, [torch.full((rank + 1,), float(rank)) for rank in EVERYONE])


def test_tensors_of_inference_mode_and_a_future():
    """The future's thread puts the results where they belong; it is not in that mode."""
    with torch.inference_mode():
        outputs = [torch.empty(3, 2, dtype=torch.float64) for _ in EVERYONE]
        turned = value(RANK).t()
        works = [dist.all_gather(outputs, value(RANK), async_op=True), dist.all_reduce(turned, async_op=True)]
    for work in works:
        work.get_future().wait()
    check([*outputs, turned], [*values(), values().sum(0).t()])


@pytest.mark.filterwarnings("ignore:.*all_gather_coalesced")
def test_all_gather_coalesced():
    """A list for each rank, of what it sends: three tensors, which are not as many as the ranks."""

    def row(rank):
        return torch.full((rank + 1,), rank + 0.5, dtype=torch.float64)

    outputs = [[torch.zeros_like(value(rank)), torch.zeros_like(row(rank)), torch.empty(0).double()] for rank in EVERYONE]
    mine = [value(RANK), row(RANK), torch.empty(0).double()]
    for asynchronous in (False, True):
        future = dist.all_gather_coalesced(outputs, mine, async_op=asynchronous)  # a future, unlike the other functions
        if asynchronous:
            future.wait()
        for rank, (first, second, _) in enumerate(outputs):
            check([first, second], [value(rank), row(rank)])
            first.zero_()
    with pytest.raises(ValueError, match=rf"a list of {SIZE + 1} lists for {SIZE} ranks"):
        dist.all_gather_coalesced([*outputs, outputs[0]], mine)
    with pytest.raises(ValueError, match="2 outputs for what rank 1 sends, but 3 inputs"):
        dist.all_gather_coalesced([outputs[0], outputs[1][:2], *outputs[2:]], mine)
    narrow = [[tensor.float() if rank != RANK else tensor for tensor in outputs[rank]] for rank in EVERYONE]
    with pytest.raises(ValueError, match=r"all_gather_coalesced: the output is torch.float32, but the input is torch.float64"):
        dist.all_gather_coalesced(narrow, mine)


def test_all_gather_into_tensor():
    output = torch.zeros(SIZE * 3, 2, dtype=torch.float64)
    for _ in waited(dist.all_gather_into_tensor, output, value(RANK)):
        check([output], [values().reshape(-1, 2)])
        output.zero_()


@pytest.mark.parametrize("place", ["own", "another"])
def test_a_tensor_inside_the_output_is_gathered(place):
    """As FSDP2 does it, and from where it would be overwritten too early."""
    output = torch.full((SIZE, 5000), -1.0, dtype=torch.float64)
    mine = output[RANK if place == "own" else (RANK + 1) % SIZE]
    mine.copy_(value(RANK, (5000,)))
    before = output._version
    dist.all_gather_into_tensor(output, mine)
    assert torch.equal(output, values(shape=(5000,)))
    assert output._version > before


def test_a_slice_of_the_input_takes_the_reduced_part():
    data = torch.stack([value(RANK, (5000,), salt=rank) for rank in EVERYONE])
    expected = torch.stack([value(rank, (5000,), salt=RANK) for rank in EVERYONE]).sum(0)
    dist.reduce_scatter_tensor(data[-1], data)
    check([data[-1]], [expected])


def test_an_output_of_another_dtype_is_refused():
    wide = torch.zeros(2 * len(EVERYONE), dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"all_gather_into_tensor: the output is torch.float64, but the input is torch.float32"
    ):
        dist.all_gather_into_tensor(wide, torch.ones(2))
    with pytest.raises(ValueError, match=r"reduce_scatter_tensor: the output is torch.float64, but the input is torch.float32"):
        dist.reduce_scatter_tensor(wide[:2], torch.ones(2 * len(EVERYONE)))


def test_sizes_that_differ_where_one_tensor_takes_all():
    with pytest.raises(ValueError, match=r"all_gather_into_tensor: the ranks sent \d+ elements, but the outputs have"):
        dist.all_gather_into_tensor(torch.zeros(SIZE * 2**RANK), torch.ones(2**RANK))  # no output has the size of all inputs


@pytest.mark.parametrize("op", ["SUM", "AVG", "MAX"])
def test_reduce_scatter(op):
    everyone = [values(salt=rank) for rank in EVERYONE]  # what each rank puts in
    reduced = {"SUM": sum(everyone), "AVG": sum(everyone) / SIZE, "MAX": torch.stack(everyone).amax(0)}[op]
    output = torch.zeros(3, 2, dtype=torch.float64)
    for _ in waited(dist.reduce_scatter, output, list(everyone[RANK]), getattr(dist.ReduceOp, op)):
        check([output], [reduced[RANK]])
        output.zero_()
    for _ in waited(dist.reduce_scatter_tensor, output, everyone[RANK].reshape(-1, 2), getattr(dist.ReduceOp, op)):
        check([output], [reduced[RANK]])
        output.zero_()


def test_reduce_scatter_of_unequal_parts():
    output = torch.zeros(RANK + 1)
    dist.reduce_scatter(output, [torch.full((rank + 1,), 10.0**RANK + rank) for rank in EVERYONE])
    check([output], [torch.full((RANK + 1,), sum(10.0**rank for rank in EVERYONE) + SIZE * RANK)])


def test_gather_and_scatter():
    for root in EVERYONE:
        outputs = [torch.zeros(3, 2, dtype=torch.float64) for _ in EVERYONE] if root == RANK else None
        for _ in waited(dist.gather, value(RANK), outputs, dst=root):
            check(outputs or [], values() if root == RANK else [])
        output = torch.zeros(3, 2, dtype=torch.float64)
        for _ in waited(dist.scatter, output, list(values(salt=5)) if root == RANK else None, src=root):
            check([output], [value(RANK, salt=5)])


def test_all_to_all():
    sent = [torch.full((RANK + to + 1,), 10.0 * RANK + to) for to in EVERYONE]
    outputs = [torch.zeros(RANK + source + 1) for source in EVERYONE]
    expected = [torch.full((RANK + source + 1,), 10.0 * source + RANK) for source in EVERYONE]
    for _ in waited(dist.all_to_all, outputs, sent):
        check(outputs, expected)
    output = torch.zeros(sum(map(len, outputs)), 2)
    into, out = [len(part) for part in outputs], [len(part) for part in sent]
    twice = torch.cat(sent)[:, None].repeat(1, 2)
    for _ in waited(dist.all_to_all_single, output, twice, into, out):
        check([output], [torch.cat(expected)[:, None].repeat(1, 2)])
    even = torch.zeros(SIZE)
    dist.all_to_all_single(even, torch.arange(float(SIZE)) + 10 * RANK)
    check([even], [torch.tensor([10.0 * source + RANK for source in EVERYONE])])


def test_objects_and_barrier():
    gathered = [None] * SIZE
    dist.all_gather_object(gathered, {"rank": RANK, "text": "x" * RANK})
    assert gathered == [{"rank": rank, "text": "x" * rank} for rank in EVERYONE]
    for root in EVERYONE:
        objects = [RANK, {"root": RANK}]
        dist.broadcast_object_list(objects, src=root)
        assert objects == [root, {"root": root}]
    for _ in waited(dist.barrier):
        pass


def test_functional_collectives(world):  # noqa: F811
    """What compiled code and DTensor call: C++ asks the group by its name."""
    functional = pytest.importorskip("torch.distributed._functional_collectives")
    if not hasattr(torch.ops, "_c10d_functional"):
        pytest.skip("this torch has no functional collectives of C++")
    check([functional.all_reduce(value(RANK), "sum", world)], [values().sum(0)])
    check([functional.all_gather_tensor(value(RANK), 0, world)], [values().reshape(-1, 2)])
    check([functional.reduce_scatter_tensor(values(), "sum", 0, world)], [values()[RANK][None] * SIZE])


# --- errors ---------------------------------------------------------------------------------------------------------------


def test_a_mismatch_names_operation_and_ranks(hvd):
    work = dist.all_reduce(torch.ones(2 + RANK), async_op=True)
    with pytest.raises(
        hvd.HorovodInternalError, match=r"allreduce of 'torch\.0\.1\.\d+\.all_reduce' in process set 0: shape differs"
    ):
        work.wait()
    with pytest.raises(RuntimeError, match="shape differs"):
        work.wait()  # again
    assert work.is_completed()
    assert not work.is_success()
    assert "shape differs" in str(work.exception())
    future = dist.all_reduce(torch.ones(2 + RANK), async_op=True).get_future()
    with pytest.raises(RuntimeError, match="shape differs"):
        future.wait()
    dist.all_reduce(tensor := torch.ones(1))  # the group goes on
    assert tensor == SIZE


def test_different_operations_are_found_out(hvd):
    call = dist.all_reduce if RANK == 0 else lambda tensor: dist.broadcast(tensor, src=0)
    with pytest.raises(hvd.HorovodInternalError, match=r"all_reduce.* missing on .*broadcast.* missing on"):
        call(torch.ones(2))


def test_timeouts(hvd):
    """A late rank is an error after the time that the caller or the group gives it."""
    tensor = torch.ones(2)
    if RANK == 0:
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(hvd.HorovodInternalError, match=r"all_reduce in group '0' .* within the timeout of 0\.2 s"):
            work.wait(timedelta(seconds=0.2))
        with pytest.raises(ValueError, match=r"all_reduce in group '0' .*wait\(timeout=-1 s\): pass a timedelta above 0"):
            work.wait(timedelta(seconds=-1))
        assert not work.is_completed()
    WORLD.Barrier()
    if RANK != 0:
        dist.all_reduce(tensor)
    else:
        work.wait()
    assert tensor.tolist() == [SIZE] * 2
    hasty = dist.new_group(timeout=timedelta(seconds=0.2))
    if RANK == 0:
        work = dist.all_reduce(tensor, group=hasty, async_op=True)
        with pytest.raises(RuntimeError, match=r"has not ended within the timeout of 0\.2 s"):
            work.get_future().wait()
    WORLD.Barrier()
    if RANK != 0:
        work = dist.all_reduce(tensor, group=hasty, async_op=True)
    work.wait(timedelta(seconds=DEADLINE))
    assert tensor.tolist() == [SIZE * SIZE] * 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: dist.all_reduce(torch.ones(1), dist.ReduceOp.BXOR),
            ValueError,
            "BXOR are for integers and bools, not torch.float32",
        ),
        (
            lambda: dist.all_gather([torch.ones(1)] * (SIZE + 1), torch.ones(1)),
            ValueError,
            f"{SIZE + 1} tensors for {SIZE} ranks",
        ),
        (lambda: dist.all_gather_into_tensor(torch.ones(1), torch.ones(1)), ValueError, "the output has 1 elements"),
        (lambda: dist.reduce_scatter_tensor(torch.ones(3), torch.ones(1)), ValueError, "the input has 1 elements"),
        (lambda: dist.all_to_all_single(torch.ones(1), torch.ones(SIZE), [1]), ValueError, "the output has 1 rows"),
        (lambda: dist.all_reduce(torch.ones(1).to_sparse(), dist.ReduceOp.MAX), NotImplementedError, "SUM or AVG only"),
        (
            lambda: dist.all_reduce(torch.ones(1).to_sparse(), dist._make_nccl_premul_sum(0.5)),
            NotImplementedError,
            "SUM or AVG only",
        ),
        (lambda: dist.broadcast(torch.ones(1).to_sparse(), src=0), NotImplementedError, "layout torch.sparse_coo"),
        (lambda: dist.all_reduce(torch.ones(1, device="meta")), NotImplementedError, "this torch tensor is on meta"),
        (lambda: dist.new_group(pg_options=object()), ValueError, "backend 'hvdlite' has no options"),
        (lambda: dist.monitored_barrier(), ValueError, "GLOO"),
    ],
)
def test_what_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
    dist.all_reduce(tensor := torch.ones(1))
    assert tensor == SIZE


# --- the store ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_host", [True, False])
def test_the_store_is_shared(hvd, one_host, monkeypatch):
    from hvdlite.torch.distributed import rendezvous

    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    store = rendezvous.make_store(one_host, timedelta(seconds=60))
    store.set(f"key{RANK}", f"value{RANK}")
    for rank in EVERYONE:
        assert store.get(f"key{rank}") == f"value{rank}".encode()
    store.add("count", RANK + 1)
    WORLD.Barrier()
    assert store.add("count", 0) == sum(rank + 1 for rank in EVERYONE)
    WORLD.Barrier()


def test_other_numbers_than_hvdlites_are_refused(hvd):
    from hvdlite.torch.distributed import rendezvous

    with pytest.raises(ValueError, match=rf"rank {RANK} and world size {SIZE + 1}, but this is rank {RANK} of {SIZE}"):
        rendezvous.check_place(RANK, SIZE + 1)
