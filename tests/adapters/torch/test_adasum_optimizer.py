"""DistributedOptimizer(op=Adasum): each rank steps by itself, and Adasum combines what the steps have changed."""

import copy

import pytest
import torch
from foreign_optimizers import hooked_lookahead, lookahead, shrinking
from reference import STEPS, adam, assert_close, assert_same_bits, mse, network, part_of, sgd, whole_batch

RANKS = (2,)
MORE_RANKS = (4,)


def combined(changes):
    """Adasum of all ranks' changes of one parameter: of neighbours, then of neighbouring pairs."""
    if len(changes) == 1:
        return changes[0]
    half = len(changes) // 2
    one, two = combined(changes[:half]), combined(changes[half:])
    product, first, second = ((x * y).sum() for x, y in ((one, two), (one, one), (two, two)))
    return (1 - product / (2 * first) if first else 1) * one + (1 - product / (2 * second) if second else 1) * two


class Simulation:
    """All ranks in this process: one model, and an optimizer with a state of its own for each rank."""

    def __init__(self, make_optimizer, size):
        self.models = [network() for _ in range(size)]
        self.optimizers = [make_optimizer(model.parameters()) for model in self.models]

    def step(self, batches):
        before = [param.detach().clone() for param in self.models[0].parameters()]
        for rank, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            optimizer.zero_grad()
            for batch in batches:
                mse(model, *part_of(batch, rank)).backward()
            optimizer.step()
        with torch.no_grad():
            for place, start in enumerate(before):
                params = [list(model.parameters())[place] for model in self.models]
                change = combined([param - start for param in params])
                for param in params:
                    param.copy_(start + change)


@pytest.mark.parametrize("make_optimizer", [sgd, adam, lookahead, hooked_lookahead, shrinking])
@pytest.mark.parametrize("passes", [1, 2])
def test_it_is_the_sum_of_the_steps(hvd, make_optimizer, passes):
    model, simulation = network(), Simulation(make_optimizer, hvd.size())
    optimizer = make_optimizer(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), op=hvd.Adasum, backward_passes_per_step=passes, groups=2
    )
    schedulers = [torch.optim.lr_scheduler.StepLR(one, 5, 0.5) for one in simulation.optimizers]
    for step in range(STEPS):
        batches = [whole_batch(10 * step + number, hvd.size()) for number in range(passes)]
        optimizer.zero_grad()
        for batch in batches:
            mse(model, *part_of(batch, hvd.rank())).backward()
        optimizer.synchronize()  # as old scripts do; there is nothing to do
        optimizer.step()
        simulation.step(batches)
        for each in (scheduler, *schedulers):
            each.step()
        assert_same_bits(list(model.parameters()))
    assert_close(list(model.parameters()), list(simulation.models[0].parameters()), 1e-9)


@pytest.mark.parametrize("adasum_first", [False, True])
def test_a_parameter_has_no_averaged_gradient_as_well(hvd, adasum_first):
    """An Adasum of averaged gradients would be an average."""
    common, own = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    first, second = ({"op": hvd.Adasum}, {})[:: 1 if adasum_first else -1]
    kept = hvd.DistributedOptimizer(sgd([common]), **first)
    with pytest.raises(ValueError, match=r"'optimizer\d+\.0\.0' belongs to two distributed optimizers .* differently"):
        hvd.DistributedOptimizer(sgd([common]), **second)
    optimizer = hvd.DistributedOptimizer(sgd([own]), **second)
    with pytest.raises(ValueError, match="differently"):
        optimizer.add_param_group({"params": [common]})
    hvd.DistributedOptimizer(kept, **second)
    optimizer.add_param_group({"params": [common]})


def test_compressed_and_unused_and_frozen(hvd):
    model, simulation = network(), Simulation(sgd, hvd.size())
    for each in (model, *simulation.models):
        each[0].bias.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Adasum, compression=hvd.Compression.bf16)
    frozen = model[0].bias.clone()
    for step in range(STEPS):
        batch = whole_batch(step, hvd.size())
        optimizer.zero_grad()
        mse(model, *part_of(batch, hvd.rank())).backward()
        optimizer.step()
        simulation.step([batch])
    assert_close(list(model.parameters()), list(simulation.models[0].parameters()), 0.05)
    assert_same_bits(list(model.parameters()))
    assert torch.equal(model[0].bias, frozen)


def test_closures_and_added_parameters(hvd):
    model = network()
    before = copy.deepcopy(model)
    params = list(model.parameters())
    optimizer = hvd.DistributedOptimizer(sgd(params[2:]), op=hvd.Adasum)
    for step in range(4):
        if step == 2:
            assert torch.equal(params[0], next(before.parameters()))
            optimizer.add_param_group({"params": params[:2]})

        def closure(step=step):
            optimizer.zero_grad()
            loss = mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank()))
            loss.backward()
            return loss

        optimizer.step(closure)
        assert_same_bits(params)
    assert not any(torch.equal(*both) for both in zip(params, before.parameters(), strict=True))


def test_ranks_that_differ_keep_their_weights(hvd):
    odd = hvd.rank() == hvd.size() - 1
    model = network(hidden=9 if odd else 8)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Adasum)
    before = [param.detach().clone() for param in model.parameters()]
    mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
    with pytest.raises(hvd.HorovodInternalError, match=r"0.0 is float64 \[8, 6\] on ranks? 0.*\[9, 6\] on rank"):
        optimizer.step()
    assert all(torch.equal(*both) for both in zip(before, model.parameters(), strict=True))


class Damaging:
    """A compression that cannot give back what has two dimensions."""

    @staticmethod
    def compress(tensor):
        return tensor, tensor.dim() > 1

    @staticmethod
    def decompress(tensor, damages):
        return tensor.new_zeros(1000) if damages else tensor


def test_a_change_that_cannot_be_applied_changes_no_parameter(hvd):
    model = network()
    params = list(model.parameters())[::-1]  # a bias first
    optimizer = hvd.DistributedOptimizer(sgd(params), op=hvd.Adasum, compression=Damaging)
    before = [param.detach().clone() for param in params]
    mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
    with pytest.raises(RuntimeError, match="1000"):
        optimizer.step()
    assert all(torch.equal(*both) for both in zip(before, params, strict=True))


def test_what_does_not_go_with_adasum(hvd):
    def wrap(**options):
        return hvd.DistributedOptimizer(sgd(network().parameters()), op=hvd.Adasum, **options)

    with pytest.raises(ValueError, match="gradient_predivide_factor not supported with op != Average"):
        wrap(gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="average_aggregated_gradients needs op=Average or op=Sum"):
        wrap(average_aggregated_gradients=True)
    skipping = wrap().skip_synchronize()
    with pytest.raises(AssertionError, match="Skipping synchronization is not supported when using Adasum optimizer"):
        skipping.__enter__()
    if hvd.size() == 4:
        subset = hvd.add_process_set([0, 1, 3])
        with pytest.raises(NotImplementedError, match=r"non-power of 2 ranks.*has 3 ranks; use op=Average, or .* of 2\)"):
            wrap(process_set=subset)
        hvd.remove_process_set(subset)
