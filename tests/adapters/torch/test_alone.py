"""One process: the same script, and nothing in the way of its speed."""

import pytest
import torch
from reference import adam, assert_close, mse, network, sgd, whole_batch

RANKS = (1,)


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
def test_training_alone(hvd, make_optimizer):
    model, twin = network(), network()
    optimizer = hvd.DistributedOptimizer(make_optimizer(model.parameters()), model.named_parameters(), op=hvd.Sum)
    twin_optimizer = make_optimizer(twin.parameters())
    assert not any(param._backward_hooks or param._post_accumulate_grad_hooks for param in model.parameters())
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for step in range(3):
        batch = whole_batch(step, 1)
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        mse(model, *batch).backward()
        mse(twin, *batch).backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize(), optimizer.no_sync():
            optimizer.step()
        twin_optimizer.step()
    assert_close(list(model.parameters()), list(twin.parameters()), 0.0)
    optimizer.set_backward_passes_per_step(2)
    assert optimizer.backward_passes_per_step == 2


def test_averaging_over_passes_alone(hvd):
    """The one thing that there is to do: otherwise the numbers would depend on how many ranks a script is given."""
    model, twin = network(), network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), backward_passes_per_step=2, average_aggregated_gradients=True)
    twin_optimizer = sgd(twin.parameters())
    for step in range(6):
        passes = 2 if step < 3 else 3
        optimizer.set_backward_passes_per_step(passes)
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        for number in range(passes):
            batch = whole_batch(10 * step + number, 1)
            mse(model, *batch).backward()
            (mse(twin, *batch) / passes).backward()
        optimizer.step()
        twin_optimizer.step()
    assert_close(list(model.parameters()), list(twin.parameters()))


def test_closures_alone(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters()))
    batch = whole_batch(0, 1)

    def closure():
        optimizer.zero_grad()
        loss = mse(model, *batch)
        loss.backward()
        return loss

    before = optimizer.step(closure).item()
    assert optimizer.step(closure).item() < before


def test_operations_alone(hvd):
    tensor = torch.arange(4.0, requires_grad=True)
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max, hvd.Product):
        result = hvd.allreduce(tensor, op=op)
        (grad,) = torch.autograd.grad(result.sum(), tensor)
        assert torch.equal(result, tensor)
        assert torch.equal(grad, torch.ones(4))
    assert torch.equal(hvd.allgather(tensor), tensor)
    assert torch.equal(hvd.alltoall(tensor), tensor)
    assert torch.equal(hvd.reducescatter(tensor), tensor)
    assert hvd.allgather_object("alone") == ["alone"]


def test_there_is_nobody_to_compare_with(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters())
    assert hvd.check_consistency(model, optimizer) is None
    checker = hvd.check_consistency(model, optimizer, every=1)
    mse(model, *whole_batch(0, 1)).backward()
    optimizer.step()
    assert checker.steps == 1
    with pytest.raises(ValueError, match="an object of type object has no bytes to compare"):
        hvd.check_consistency(object())
