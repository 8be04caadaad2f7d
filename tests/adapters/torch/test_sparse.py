"""Sparse gradients, as embeddings give them."""

import itertools

import pytest
import torch
from reference import STEPS, assert_close, assert_same_bits, grads_of, sgd

ROWS, WIDTH, WORDS = 12, 4, 5


class Bag(torch.nn.Module):
    def __init__(self, dtype=torch.float64, tied=False):
        super().__init__()
        torch.manual_seed(4)
        self.table = torch.nn.Embedding(ROWS, WIDTH, sparse=True).to(dtype)
        self.rare = torch.nn.Embedding(ROWS, WIDTH, sparse=True).to(dtype)
        self.head = torch.nn.Linear(WIDTH, 3).to(dtype)
        self.tied = tied

    def forward(self, words, rare=True):
        hidden = self.table(words).sum(1)
        if rare:
            hidden = hidden + self.rare(words[:, :1]).sum(1)
        out = self.head(torch.tanh(hidden))
        return out + (hidden @ self.table.weight.t()).mean(1, keepdim=True) if self.tied else out


def words_of(step, size):
    """Some words occur on several ranks and more than once, others on one rank only."""
    return torch.randint(0, ROWS, (2 * size, WORDS), generator=torch.Generator().manual_seed(step))


def sparse_optimizer(params):
    return torch.optim.SGD(params, lr=0.1)


def train(hvd, model, twin, optimizer, twin_optimizer, passes=1, factor=1.0, tolerance=1e-12):
    for step in range(STEPS):
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        for number in range(passes):
            words = words_of(10 * step + number, hvd.size())
            losses = []
            for rank in range(hvd.size()):
                part = words[2 * rank : 2 * rank + 2]
                rare = (rank + step) % 2 == 0  # so some rank has no gradient of that table
                if rank == hvd.rank():
                    model(part, rare).square().mean().backward()
                losses.append(twin(part, rare).square().mean())
            (sum(losses) * factor / hvd.size()).backward()
            assert_close(grads_of(model), grads_of(twin), tolerance)
        yield step
        optimizer.step()
        twin_optimizer.step()
    assert_close(list(model.parameters()), list(twin.parameters()), tolerance)
    assert_same_bits(list(model.parameters()))


# Each two of the three go together in each way; the other half is slow.
@pytest.mark.parametrize(
    ("as_dense", "op", "passes"),
    [
        pytest.param(as_dense, op, passes, marks=[] if as_dense ^ (op == "Sum") ^ (passes == 1) else [pytest.mark.slow])
        for as_dense, op, passes in itertools.product([False, True], ["Average", "Sum"], [1, 3])
    ],
)
def test_sparse_gradients(hvd, as_dense, op, passes):
    model, twin = Bag(), Bag()
    optimizer = hvd.DistributedOptimizer(
        sparse_optimizer(model.parameters()), model.named_parameters(), op=getattr(hvd, op), sparse_as_dense=as_dense
    )
    factor = hvd.size() if op == "Sum" else 1
    for _ in train(hvd, model, twin, optimizer, sparse_optimizer(twin.parameters()), passes, factor):
        assert model.table.weight.grad.layout is torch.sparse_coo
        assert_same_bits([model.table.weight.grad.coalesce().values(), model.table.weight.grad.coalesce().indices()])


def test_sparse_adam(hvd):
    """It takes sparse gradients only, and differs from Adam in how it treats rows without one."""

    def split(model):
        return torch.optim.SparseAdam([model.table.weight, model.rare.weight], lr=0.01), sgd(model.head.parameters())

    model, twin = Bag(), Bag()
    optimizers = [hvd.DistributedOptimizer(optimizer) for optimizer in split(model)]
    twin_optimizers = split(twin)
    for step in range(STEPS):
        words = words_of(step, hvd.size())
        for optimizer in (*optimizers, *twin_optimizers):
            optimizer.zero_grad()
        model(words[2 * hvd.rank() : 2 * hvd.rank() + 2]).square().mean().backward()
        twin(words).square().mean().backward()
        for optimizer in (*optimizers, *twin_optimizers):
            optimizer.step()
    assert_close(list(model.parameters()), list(twin.parameters()), 1e-9)
    assert_same_bits(list(model.parameters()))


def test_backward_passes_per_step_of_sparse_gradients(hvd):
    model, twin = Bag(), Bag()
    optimizer = hvd.DistributedOptimizer(sparse_optimizer(model.parameters()), backward_passes_per_step=2)
    twin_optimizer = sparse_optimizer(twin.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        for number in range(2):
            words = words_of(10 * step + number, hvd.size())
            model(words[2 * hvd.rank() : 2 * hvd.rank() + 2]).square().mean().backward()
            twin(words).square().mean().backward()
        assert_close(grads_of(model), grads_of(twin))
        optimizer.step()
        twin_optimizer.step()
    assert_same_bits(list(model.parameters()))


def test_a_table_with_sparse_and_dense_gradient(hvd):
    model, twin = Bag(tied=True), Bag(tied=True)
    optimizer = hvd.DistributedOptimizer(sparse_optimizer(model.parameters()), model.named_parameters())
    for _ in train(hvd, model, twin, optimizer, sparse_optimizer(twin.parameters())):
        assert model.table.weight.grad.layout is torch.strided


def test_a_dense_pass_too_many_after_sparse_ones_is_refused(hvd):
    model = Bag()
    optimizer = hvd.DistributedOptimizer(sparse_optimizer(model.parameters()), backward_passes_per_step=2)
    words = words_of(0, 1)
    for _ in range(2):
        model(words).square().mean().backward()
    reduced = model.table.weight.grad.to_dense()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
        model.table.weight.sum().backward()
    assert_close([model.table.weight.grad], [reduced + 1])
    optimizer.zero_grad()


@pytest.mark.parametrize("sparse_first", [True, False])
def test_a_gradient_that_changes_its_layout(hvd, sparse_first):
    model, twin = Bag(), Bag()
    optimizer = hvd.DistributedOptimizer(sparse_optimizer(model.parameters()), model.named_parameters())
    model.tied = twin.tied = not sparse_first
    for step in train(hvd, model, twin, optimizer, sparse_optimizer(twin.parameters())):
        if step == 1:
            model.tied = twin.tied = sparse_first


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("name", ["rows", None])
def test_sparse_allreduce_async(hvd, op, name):
    for step in range(STEPS):
        tensors = []
        for rank in range(hvd.size()):
            count = (rank + step) % 3
            generator = torch.Generator().manual_seed(10 * rank + step)
            indices = torch.randint(0, 6, (1, count), generator=generator)
            tensors.append(
                torch.sparse_coo_tensor(indices, torch.randn(count, 2, generator=generator), (6, 2), check_invariants=True)
            )
        finish = hvd.sparse_allreduce_async(tensors[hvd.rank()], name, getattr(hvd, op))
        total = sum(tensor.to_dense() for tensor in tensors)
        assert_close([finish()], [total / hvd.size() if op == "Average" else total], 1e-6)
    assert finish() is None
    for misused in (hvd.synchronize, hvd.poll):
        with pytest.raises(ValueError, match="is no handle but a function: call what sparse_allreduce_async returned"):
            misused(finish)
    with pytest.raises(ValueError, match=r"of layout torch\.sparse_coo"):
        hvd.sparse_allreduce_async(torch.ones(2), "dense", hvd.Sum)


def test_a_sparse_mean_of_integers_is_truncated(hvd):
    tensor = torch.sparse_coo_tensor([[0, 2]], torch.tensor([-3 * hvd.rank(), 5]), (4,), check_invariants=True)
    mean = hvd.sparse_allreduce_async(tensor, "integers", hvd.Average)()
    total = 3 * sum(range(hvd.size()))
    assert mean.dtype is torch.int64
    assert mean.to_dense().tolist() == [-(total // hvd.size()), 0, 5, 0]
    assert mean.to_dense().equal(hvd.allreduce(tensor.to_dense(), op=hvd.Average))


def test_sparse_tensors_of_several_shapes(hvd):
    extent = 4 + 2 * (hvd.rank() == 0)
    tensor = torch.sparse_coo_tensor([[extent - 1]], torch.ones(1), (extent,), check_invariants=True)
    finish = hvd.sparse_allreduce_async(tensor, "several", hvd.Sum)
    with pytest.raises(hvd.HorovodInternalError, match=r"'several' .*: the shape is \[6\] on rank 0, but the shape is \[4\]"):
        finish()


def test_sparse_truth_values_are_refused(hvd):
    tensor = torch.sparse_coo_tensor([[0]], torch.tensor([True]), (4,), check_invariants=True)
    for op in (hvd.Average, hvd.Sum):
        with pytest.raises(ValueError, match="bool is not supported: cast them to numbers first"):
            hvd.sparse_allreduce_async(tensor, "truth", op)


def test_an_empty_gradient_is_not_none(hvd):
    """Momentum goes on where a table's gradient is empty, so all ranks have to have an empty one, or none."""
    model, twin = Bag(), Bag()

    def make(net):
        return torch.optim.SGD(net.table.parameters(), lr=0.1, momentum=0.9)

    optimizer, twin_optimizer = hvd.DistributedOptimizer(make(model)), make(twin)
    nothing = torch.zeros((0, WORDS), dtype=torch.int64)
    for step in range(STEPS):
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        words = words_of(step, hvd.size())
        if step % 3 == 0:  # all ranks have rows
            model.table(words[2 * hvd.rank() : 2 * hvd.rank() + 2]).square().mean().backward()
            twin.table(words).square().mean().backward()
        elif step % 3 == 1:  # rank 1 alone has a gradient, without rows
            (model.table(nothing).sum() if hvd.rank() == 1 else torch.zeros(1, requires_grad=True).sum()).backward()
            twin.table(nothing).sum().backward()
            optimizer.synchronize()
        assert_close(grads_of(model.table), grads_of(twin.table))
        optimizer.step()
        twin_optimizer.step()
        assert_same_bits([model.table.weight])
    assert_close([model.table.weight], [twin.table.weight])
