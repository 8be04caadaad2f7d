"""The collectives for torch tensors, and what flows back through them."""

import pytest
import torch
from mpi4py import MPI
from reference import assert_close, assert_same_bits

STEPS = 3


def value(rank, step, shape=(5, 3), dtype=torch.float64):
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(shape, generator=generator, dtype=dtype)


def values(hvd, step, shape=(5, 3), dtype=torch.float64):
    return [value(rank, step, shape, dtype) for rank in range(hvd.size())]


def seeds(hvd, step, shape):
    """The gradient that comes in on each rank."""
    return [value(50 + rank, step, shape) for rank in range(hvd.size())]


def reduced(name, tensors):
    stacked = torch.stack(tensors)
    return {
        "Average": lambda: stacked.mean(0),
        "Sum": lambda: stacked.sum(0),
        "Min": lambda: stacked.amin(0),
        "Max": lambda: stacked.amax(0),
        "Product": lambda: stacked.prod(0),
    }[name]()


@pytest.mark.parametrize("op", ["Average", "Sum", "Min", "Max", "Product"])
@pytest.mark.parametrize("name", ["named", None])
def test_allreduce_and_its_gradient(hvd, op, name):
    """The gradient of the sum of all ranks' losses."""
    for step in range(STEPS):
        everyone = [tensor.requires_grad_() for tensor in values(hvd, step)]
        mine = everyone[hvd.rank()].detach().clone().requires_grad_()
        found = hvd.allreduce(mine, name=name, op=getattr(hvd, op))
        expected = reduced(op, everyone)
        assert_close([found], [expected])
        assert_same_bits([found])
        incoming = seeds(hvd, step, (5, 3))
        found.backward(incoming[hvd.rank()])
        # Of Average, Horovod hands back the average, which is that gradient.
        expected.backward(sum(incoming))
        assert_close([mine.grad], [everyone[hvd.rank()].grad])


@pytest.mark.parametrize("op", ["Min", "Product"])
def test_gradients_at_ties_and_zeros(hvd, op):
    """Ties share; a zero leaves the product's slope to the rank that has it."""
    everyone = [torch.ones(4, dtype=torch.float64) * (rank + 2) for rank in range(hvd.size())]
    for rank, tensor in enumerate(everyone):
        tensor[0] = 1.0  # a tie
        if rank == 1:
            tensor[1] = 0.0
        if rank < 2:
            tensor[2] = 0.0
        tensor.requires_grad_()
    mine = everyone[hvd.rank()].detach().clone().requires_grad_()
    hvd.allreduce(mine, op=getattr(hvd, op)).sum().backward()
    (reduced(op, everyone).sum() * hvd.size()).backward()
    assert_close([mine.grad], [everyone[hvd.rank()].grad])


def test_allreduce_scaled_and_compressed(hvd):
    for step in range(STEPS):
        everyone = values(hvd, step)
        mine = everyone[hvd.rank()].clone().requires_grad_()
        incoming = seeds(hvd, step, (5, 3))
        found = hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
        found.backward(incoming[hvd.rank()])
        assert_close([found, mine.grad], [1.5 * sum(everyone), 1.5 * sum(incoming)])
        mine.grad = None
        found = hvd.allreduce(mine, compression=hvd.Compression.bf16)
        found.backward(incoming[hvd.rank()])
        assert found.dtype is mine.grad.dtype is torch.float64
        assert not torch.equal(found, sum(everyone) / hvd.size())
        assert_close([found, mine.grad], [sum(everyone) / hvd.size(), sum(incoming) / hvd.size()], 2e-2)
    coded = torch.tensor([0.1 + hvd.rank(), 0.7], requires_grad=True)
    hvd.allreduce(coded, op=hvd.Min, compression=hvd.Compression.fp16).sum().backward()
    assert_close([coded.grad], [torch.tensor([hvd.size() if hvd.rank() == 0 else 0.0, 1.0])])
    scaled = hvd.allreduce(mine, op=hvd.Max, prescale_factor=2.0)
    with pytest.raises(NotImplementedError, match="op=Max and scale factors has no gradient"):
        scaled.sum().backward()


@pytest.mark.parametrize("op", ["Average", "Max", "Product"])
def test_a_named_backward_has_no_unnamed_collectives(hvd, op):
    """So its place among the rank's unnamed collectives may differ from rank to rank."""
    everyone = [tensor.requires_grad_() for tensor in values(hvd, 0)]
    mine = everyone[hvd.rank()].detach().clone().requires_grad_()
    found = hvd.allreduce(mine, name="named", op=getattr(hvd, op))
    unnamed = torch.full((7,), float(hvd.rank()))
    before = hvd.allreduce_async(unnamed, op=hvd.Sum) if hvd.rank() == 0 else None
    found.backward(torch.ones_like(mine))
    after = before if before is not None else hvd.allreduce_async(unnamed, op=hvd.Sum)
    assert_close([hvd.synchronize(after)], [torch.full((7,), float(sum(range(hvd.size()))))])
    reduced(op, everyone).backward(torch.full_like(mine, hvd.size()))
    assert_close([mine.grad], [everyone[hvd.rank()].grad])


@pytest.mark.parametrize("op", ["Sum", "Max", "Product"])
@pytest.mark.parametrize("name", ["group", None])
def test_grouped_allreduce(hvd, op, name):
    shapes = [(2,), (3, 4), ()]
    for step in range(STEPS):
        everyone = [values(hvd, 10 * step + place, shape) for place, shape in enumerate(shapes)]
        for ranks in everyone:
            for tensor in ranks:
                tensor.requires_grad_()
        mine = [ranks[hvd.rank()].detach().clone().requires_grad_() for ranks in everyone]
        found = hvd.grouped_allreduce(mine, name=name, op=getattr(hvd, op))
        expected = [reduced(op, ranks) for ranks in everyone]
        assert isinstance(found, list)
        assert_close(found, expected)
        incoming = [seeds(hvd, 10 * step + place, shape) for place, shape in enumerate(shapes)]
        torch.autograd.backward(found[:2], [ranks[hvd.rank()] for ranks in incoming[:2]])  # the third is not used
        torch.autograd.backward(expected[:2], [sum(ranks) for ranks in incoming[:2]])
        assert_close([tensor.grad for tensor in mine], [*(ranks[hvd.rank()].grad for ranks in everyone[:2]), torch.zeros(())])


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", ["rows", None])
def test_allgather(hvd, grouped, name):
    """Backward gives each rank its rows of the average."""
    for step in range(STEPS):
        everyone = [[value(rank, step + place, (rank + place, 2)) for rank in range(hvd.size())] for place in range(2)]
        mine = [ranks[hvd.rank()].clone().requires_grad_() for ranks in everyone]
        if grouped:
            found = hvd.grouped_allgather(mine, name)
        else:
            found = [hvd.allgather(tensor, name and f"{name}{place}") for place, tensor in enumerate(mine)]
        assert_close(found, [torch.cat(ranks) for ranks in everyone])
        incoming = [seeds(hvd, step + place, tuple(tensor.shape)) for place, tensor in enumerate(found)]
        torch.autograd.backward(found, [ranks[hvd.rank()] for ranks in incoming])
        for place, tensor in enumerate(mine):
            start = sum(rank + place for rank in range(hvd.rank()))
            average = sum(incoming[place]) / hvd.size()
            assert_close([tensor.grad], [average[start : start + hvd.rank() + place]])


@pytest.mark.parametrize("name", ["root", None])
def test_broadcast(hvd, name):
    for step in range(STEPS):
        root = step % hvd.size()
        mine = value(hvd.rank(), step).requires_grad_()
        found = hvd.broadcast(mine, root, name)
        assert_close([found], [value(root, step)])
        incoming = seeds(hvd, step, (5, 3))
        found.backward(incoming[hvd.rank()])
        average = sum(incoming) / hvd.size()
        assert_close([mine.grad], [average if hvd.rank() == root else torch.zeros_like(average)])


@pytest.mark.parametrize("splits", ["even", "list", "int32", "int64", "short"])
def test_alltoall(hvd, splits):
    size, rank = hvd.size(), hvd.rank()
    for step in range(STEPS):
        spare = 2 if splits == "short" else 0
        counts = [[2] * size if splits == "even" else [(r + c + step) % 3 for c in range(size)] for r in range(size)]
        everyone = [value(r, step, (sum(counts[r]) + spare, 2)) for r in range(size)]
        mine = everyone[rank].clone().requires_grad_()
        argument = None if splits == "even" else counts[rank]
        if splits in ("int32", "int64"):
            argument = torch.tensor(argument, dtype=getattr(torch, splits))
        found = hvd.alltoall(mine, argument)
        if splits != "even":
            found, received = found
            assert received.tolist() == [counts[r][rank] for r in range(size)]
            assert received.dtype is torch.int32
        pieces = [torch.split(everyone[r][: sum(counts[r])], counts[r])[rank] for r in range(size)]
        assert_close([found], [torch.cat(pieces)])
        # Each row comes back times the number of the rank that it went to.
        (found * (rank + 1)).sum().backward()
        expected = torch.zeros_like(mine)
        start = 0
        for target, count in enumerate(counts[rank]):
            expected[start : start + count] = target + 1
            start += count
        assert_close([mine.grad], [expected])


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_reducescatter(hvd, grouped, op):
    """Backward gathers the gradients, times the factors, and with Sum times the number of ranks."""
    size, rank = hvd.size(), hvd.rank()
    rows = [2 * size + 1, size]
    for step in range(STEPS):
        everyone = [values(hvd, step + place, (count, 2)) for place, count in enumerate(rows)]
        mine = [ranks[rank].clone().requires_grad_() for ranks in everyone]
        options = {"op": getattr(hvd, op), "prescale_factor": 2.0}
        if grouped:
            found = hvd.grouped_reducescatter(mine, **options)
        else:
            found = [hvd.reducescatter(tensor, **options) for tensor in mine]
        bounds = [[r * (count // size) + min(r, count % size) for r in range(size + 1)] for count in rows]
        for place, result in enumerate(found):
            whole = 2.0 * reduced(op, everyone[place])
            assert_close([result], [whole[bounds[place][rank] : bounds[place][rank + 1]]])
        torch.autograd.backward(found, [torch.full_like(result, rank + 1.0) for result in found])
        for place, tensor in enumerate(mine):
            expected = torch.cat([torch.full((bounds[place][r + 1] - bounds[place][r], 2), r + 1.0) for r in range(size)]) * (
                2.0 * (size if op == "Sum" else 1)
            )
            assert_close([tensor.grad], [expected.double()])


def test_through_a_model(hvd):
    """An allreduced activation: the gradient of the sum of the ranks' losses reaches the weights."""
    torch.manual_seed(2)
    layer = torch.nn.Linear(3, 2).double()
    twin = torch.nn.Linear(3, 2).double()
    twin.load_state_dict(layer.state_dict())
    for step in range(STEPS):
        layer.zero_grad()
        twin.zero_grad()
        (hvd.allreduce(layer(value(hvd.rank(), step)), name="hidden") * (hvd.rank() + 1)).square().sum().backward()
        mean = sum(twin(value(rank, step)) for rank in range(hvd.size())) / hvd.size()
        sum((mean * (rank + 1)).square().sum() for rank in range(hvd.size())).backward()
        total = [torch.from_numpy(MPI.COMM_WORLD.allreduce(param.grad.numpy())) for param in layer.parameters()]
        assert_close(total, [param.grad for param in twin.parameters()])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int64, torch.float32])
def test_dtypes_in_place_and_async(hvd, dtype):
    for step in range(STEPS):
        whole = [torch.arange(6, dtype=torch.int64).add(rank + step).to(dtype).reshape(2, 3) for rank in range(hvd.size())]
        total = sum(whole)
        mine = whole[hvd.rank()].clone()
        handle = hvd.allreduce_async(mine, op=hvd.Sum, name=f"{dtype}")
        assert torch.equal(hvd.synchronize(handle), total)
        assert hvd.poll(handle)
        assert torch.equal(mine, whole[hvd.rank()])
        assert hvd.allreduce_(mine, op=hvd.Sum) is mine
        assert torch.equal(mine, total)
        pair = [whole[hvd.rank()].clone(), whole[hvd.rank()].clone().t()]
        hvd.synchronize(hvd.grouped_allreduce_async_(pair, op=hvd.Max))
        assert torch.equal(pair[0], torch.stack(whole).amax(0))
        assert torch.equal(pair[1], torch.stack(whole).amax(0).t())
        root = step % hvd.size()
        assert torch.equal(hvd.broadcast_(whole[hvd.rank()].clone(), root), whole[root])


def test_what_is_written_meanwhile_is_counted_when_it_is_there(hvd):
    tensor = torch.full((3,), hvd.rank() + 1.0, requires_grad=True)
    before = tensor._version
    handle = hvd.allreduce_async_(tensor, op=hvd.Sum, name="written")
    assert tensor._version == before
    assert hvd.synchronize(handle) is tensor
    assert tensor._version > before
    assert tensor.tolist() == [hvd.size() * (hvd.size() + 1) / 2] * 3
    with torch.inference_mode():  # whose tensors have no such count
        tensor = torch.ones(3)
        assert hvd.synchronize(hvd.allreduce_async_(tensor, op=hvd.Sum, name="inference")) is tensor
        assert tensor.tolist() == [hvd.size()] * 3


def test_no_gradient_is_recorded_where_none_is_wanted(hvd):
    tensor = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not hvd.allreduce(tensor * hvd.rank(), op=hvd.Sum).requires_grad
    assert not hvd.allreduce(tensor.detach()).requires_grad
    assert hvd.allreduce(tensor).requires_grad


def test_a_model_output_that_autograd_saved_is_not_overwritten_unnoticed(hvd):
    source = torch.ones(3, requires_grad=True)
    saved = source.exp()  # keeps its output for backward
    hvd.allreduce_(saved.detach(), op=hvd.Sum)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


def test_average_is_deprecated_but_works(hvd):
    with pytest.warns(DeprecationWarning, match="replaced with `op`"):
        total = hvd.allreduce(torch.tensor([1.0 + hvd.rank()], requires_grad=True), average=False)
    assert total.item() == sum(range(1, hvd.size() + 1))
    with pytest.raises(ValueError, match="The op parameter supersedes average"):
        hvd.allreduce(torch.ones(1, requires_grad=True), average=True, op=hvd.Sum)
