"""What flows back through every collective, against numeric differentiation of the sum of all ranks' losses.

Horovod's conventions scale that gradient: `Case.scale` says by what. The second derivative is differentiated numerically
from the first.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch.autograd import forward_ad

from hvdlite.errors import UnsupportedError

WORLD = MPI.COMM_WORLD
STEP = 1e-5
SCALES = {"prescale_factor": 0.5, "postscale_factor": 3.0}


class Case(NamedTuple):
    """function(hvd, tensor, process_set) gives this rank's outputs; rows(place, size): first dimension of its input."""

    function: Callable
    rows: Callable[[int, int], int] = lambda place, size: 2
    scale: Callable[[int], float] = lambda size: 1.0  # of the first derivative
    second: Callable[[int], float] | None = lambda size: 1.0  # of the second one; None: there is none


def one_nth(size):
    return 1.0 / size


def uneven(place, size):
    return place + 1


def splits_of(place, size):
    return [(place + target) % 3 for target in range(size)]


def by_splits(place, size):
    return sum(splits_of(place, size)) + 1  # a row that stays behind


def alltoall(hvd, x, s):
    return [hvd.alltoall(x, splits_of(s.rank(), s.size()), process_set=s)[0]]


def twice(hvd, x, s):
    return [hvd.allreduce(x, op=hvd.Sum, process_set=s, name="a") * hvd.allreduce(x.sin(), process_set=s, name="b")]


CASES = {
    "allreduce": Case(lambda hvd, x, s: [hvd.allreduce(x, process_set=s)]),
    "allreduce sum": Case(lambda hvd, x, s: [hvd.allreduce(x, op=hvd.Sum, name="n", process_set=s)]),
    "allreduce scaled": Case(lambda hvd, x, s: [hvd.allreduce(x, process_set=s, **SCALES)]),
    "allreduce min": Case(lambda hvd, x, s: [hvd.allreduce(x, op=hvd.Min, process_set=s)]),
    "allreduce max": Case(lambda hvd, x, s: [hvd.allreduce(x, op=hvd.Max, process_set=s)]),
    "allreduce product": Case(lambda hvd, x, s: [hvd.allreduce(x, op=hvd.Product, process_set=s)], second=None),
    "allreduce twice": Case(twice),
    "allreduce transposed": Case(lambda hvd, x, s: [hvd.allreduce(x.t(), process_set=s)]),
    "grouped_allreduce": Case(lambda hvd, x, s: hvd.grouped_allreduce([x, x[0] * x[1]], op=hvd.Sum, process_set=s, **SCALES)),
    "allgather": Case(lambda hvd, x, s: [hvd.allgather(x, process_set=s)], uneven, one_nth, one_nth),
    "grouped_allgather": Case(
        lambda hvd, x, s: hvd.grouped_allgather([x, 2 * x[:1]], "gg", process_set=s), uneven, one_nth, one_nth
    ),
    "broadcast": Case(lambda hvd, x, s: [hvd.broadcast(x, s.ranks[-1], process_set=s)], scale=one_nth, second=one_nth),
    "alltoall even": Case(lambda hvd, x, s: [hvd.alltoall(x, process_set=s)], lambda place, size: 2 * size),
    "alltoall": Case(alltoall, by_splits),
    "reducescatter": Case(
        lambda hvd, x, s: [hvd.reducescatter(x, process_set=s)], lambda place, size: 2 * size - 1, lambda size: size
    ),
    "reducescatter sum": Case(
        lambda hvd, x, s: [hvd.reducescatter(x, op=hvd.Sum, process_set=s, **SCALES)],
        lambda place, size: size + 1,
        lambda size: size,
    ),
    "grouped_reducescatter": Case(
        lambda hvd, x, s: hvd.grouped_reducescatter([x, x.t().exp()], op=hvd.Sum, process_set=s, **SCALES),
        lambda place, size: size,
        lambda size: size,
    ),
}


def values(salt, *shape):
    generator = torch.Generator().manual_seed(1000 * WORLD.rank + salt)
    return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5


def weights_like(tensors, salt):
    return [values(salt + place, *tensor.shape) for place, tensor in enumerate(tensors)]


def differentiated(loss, point, members):
    """Numerically, of the sum of the members' losses with respect to this rank's point."""
    counts = WORLD.allgather(point.numel())
    steps = [(rank, index, step) for rank in members for index in range(counts[rank]) for step in (STEP, -STEP)]
    losses = np.zeros(len(steps))
    for place, (rank, index, step) in enumerate(steps if WORLD.rank in members else ()):
        moved = point.clone()
        if WORLD.rank == rank:
            moved.view(-1)[index] += step
        losses[place] = loss(moved).item()
    WORLD.Allreduce(MPI.IN_PLACE, losses)
    slopes = (losses[::2] - losses[1::2]) / (2 * STEP)
    mine = [place for place, (rank, _, _) in enumerate(steps[::2]) if rank == WORLD.rank]
    return torch.from_numpy(slopes[mine]).reshape(point.shape)


@pytest.fixture(scope="module", params=["global", "a set"])
def process_set(hvd, request):
    """All ranks, and those without rank 0."""
    if request.param == "global":
        return hvd.global_process_set
    if hvd.size() < 3:
        pytest.skip("a set of two of several ranks")
    return hvd.add_process_set(range(1, hvd.size()))


@pytest.mark.parametrize("name", CASES)
def test_first_and_second_derivative(hvd, process_set, name):
    case = CASES[name]
    members = process_set.ranks
    included, size = process_set.included(), process_set.size()
    shape = (case.rows(process_set.rank(), size) if included else 0, 1)
    point = values(1, *shape)

    def outputs(x):
        return case.function(hvd, x, process_set)

    def loss(x):
        found = outputs(x)
        return sum((weight * tensor**3).sum() for weight, tensor in zip(weights_like(found, 50), found, strict=True))

    def slope(x, create_graph):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(x), x, create_graph=create_graph)
        return x, gradient

    if included:
        _, gradient = slope(point, create_graph=False)
    right = differentiated(lambda x: loss(x.detach()), point, members)
    if included:
        torch.testing.assert_close(gradient, case.scale(size) * right, rtol=1e-6, atol=1e-7)
    if case.second is None:
        if included:
            with pytest.raises(UnsupportedError, match="unnamed tensor with op=Product can be differentiated once only"):
                slope(point, create_graph=True)[1].sum().backward()
        return
    direction = values(2, *shape)
    if included:
        x, gradient = slope(point, create_graph=True)
        (second,) = torch.autograd.grad((gradient * direction).sum(), x)
    right = differentiated(lambda x: (slope(x, create_graph=False)[1] * direction).sum(), point, members)
    if included:
        torch.testing.assert_close(second, case.second(size) * right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_gradients(hvd, dtype):
    """Of a real loss of complex values, by torch's convention: what one process computes that has all ranks' tensors."""
    everyone = [
        torch.complex(torch.arange(3.0) + rank, torch.ones(3) * rank).to(dtype).requires_grad_() for rank in range(hvd.size())
    ]
    mine = everyone[hvd.rank()].detach().clone().requires_grad_()
    (hvd.allreduce(mine).conj() * (1 + hvd.rank()) * 1j * mine).abs().sum().backward()
    mean = sum(everyone) / hvd.size()
    sum((mean.conj() * (1 + rank) * 1j * tensor).abs().sum() for rank, tensor in enumerate(everyone)).backward()
    torch.testing.assert_close(mine.grad, everyone[hvd.rank()].grad)


def test_adasum_goes_back_as_adasum(hvd):
    """Horovod's convention."""
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("the number of ranks is no power of two")
    mine = values(4, 5).requires_grad_()
    incoming = values(5, 5)
    hvd.allreduce(mine, op=hvd.Adasum).backward(incoming)
    torch.testing.assert_close(mine.grad, hvd.allreduce(incoming, op=hvd.Adasum))


def test_a_rank_whose_tensor_needs_no_gradient(hvd):
    """Backward is a collective: a rank for which there is nothing to differentiate takes part by hand."""
    mine = torch.ones(2, dtype=torch.float64, requires_grad=hvd.rank() > 0)
    out = hvd.allreduce(mine, op=hvd.Sum, name="part")
    if out.requires_grad:
        out.backward(torch.full((2,), hvd.rank() + 1.0, dtype=torch.float64))
        assert mine.grad.tolist() == [sum(rank + 1.0 for rank in range(1, hvd.size()))] * 2
    else:
        hvd.allreduce(torch.zeros(2, dtype=torch.float64), op=hvd.Sum, name="part.grad")


@pytest.mark.parametrize("joined", ["the first", "the last"])
def test_a_rank_that_has_joined_has_gradients_of_zero(hvd, joined):
    rank, size = hvd.rank(), hvd.size()
    joined = 0 if joined == "the first" else size - 1
    working = [each for each in range(size) if each != joined]
    if rank == joined:
        hvd.join()
        return
    mine = torch.ones(rank + 1, dtype=torch.float64, requires_grad=True)
    gathered = hvd.allgather(mine)
    rows = torch.arange(len(gathered), dtype=torch.float64)
    gathered.backward(rows + 100 * rank)
    begin = sum(each + 1 for each in working if each < rank)
    mean = (len(working) * rows + 100 * sum(working)) / size
    torch.testing.assert_close(mine.grad, mean[begin : begin + rank + 1])

    mine = torch.ones(size + 1, dtype=torch.float64, requires_grad=True)
    received, _ = hvd.alltoall(mine, torch.ones(size, dtype=torch.int32))  # a row stays behind
    received.backward(10.0 * rank + torch.arange(len(working)))
    assert mine.grad.tolist() == [0 if to == joined else 10 * to + working.index(rank) for to in range(size)] + [0]

    pair = [torch.ones(rows, 2, dtype=torch.float64, requires_grad=True) for rows in (size, 1)]
    scattered = hvd.grouped_reducescatter(pair, op=hvd.Average)
    torch.autograd.backward(scattered, [torch.full_like(part, rank + 1) for part in scattered])
    assert pair[0].grad.tolist() == [[0 if owner == joined else owner + 1] * 2 for owner in range(size)]
    assert pair[1].grad.tolist() == [[0 if joined == 0 else 1] * 2]
    hvd.join()


def test_a_rank_that_joins_before_the_backward_of_an_allgather(hvd):
    out = hvd.allgather(torch.ones(hvd.rank() + 1, requires_grad=True), name="all")
    if hvd.rank() > 0:
        with pytest.raises(hvd.HorovodInternalError, match=r"allgather of 'all': a rank has joined .*; call join\(\)"):
            out.sum().backward()
    hvd.join()


def test_a_tangent_of_a_gradient_is_refused(hvd):
    """Forward mode over reverse mode, as for products with the Hessian: what is beside the gradient would stay this rank's."""
    param = torch.nn.Parameter(values(6, 3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("weight", param)])

    def backward():
        scale = forward_ad.make_dual(values(7, 3), values(8, 3))
        ((param * scale) ** 2).sum().backward(create_graph=True)
        return forward_ad.unpack_dual(param.grad).tangent

    with forward_ad.dual_level():
        with pytest.raises(UnsupportedError, match=r"gradient of parameter 'optimizer\d+\.weight' has a tangent"):
            backward()
        optimizer.zero_grad()
        with optimizer.no_sync():
            tangent = backward()
        assert len(hvd.allreduce(tangent.detach())) == 3
        optimizer.zero_grad()
        (param * 2).sum().backward()
    assert param.grad.tolist() == [2, 2, 2]
