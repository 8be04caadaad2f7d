"""Optimizers that torch's hooks do not reach, and parameters that an optimizer is given behind the wrapper."""

import contextlib

import pytest
import torch
from foreign_optimizers import hooked_lookahead, lookahead, shrinking
from reference import Pair, assert_same_bits, sgd

from hvdlite.errors import InvalidArgumentError

MAKERS = (lookahead, hooked_lookahead, shrinking)


@pytest.mark.parametrize("kept_back", [False, True])
@pytest.mark.parametrize("scheduled", [None, "before", "after"])
@pytest.mark.parametrize("make_optimizer", MAKERS)
def test_every_step_is_that_of_all_ranks(hvd, make_optimizer, scheduled, kept_back):
    schedulers = []

    def make(params):
        optimizer = make_optimizer(params)
        if scheduled == "before":
            schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 2))
        return optimizer

    pair = Pair(hvd, make)
    if scheduled == "after":
        schedulers = [torch.optim.lr_scheduler.StepLR(each, 2) for each in (pair.optimizer, pair.twin_optimizer)]
    for step in range(5):
        pair.zero()
        with pair.optimizer.no_sync() if kept_back else contextlib.nullcontext():
            pair.backward(step)
        pair.step()
        for scheduler in schedulers:
            scheduler.step()
    pair.check_weights()
    if make_optimizer is lookahead:  # wrapped again, then alone, it calls each hook once
        calls = []
        again = hvd.DistributedOptimizer(pair.optimizer)
        again.register_step_post_hook(lambda *_: calls.append(1))
        again.step()
        assert calls == [1]


def appended(groups):
    groups[1]["params"].append(torch.nn.Parameter(torch.ones(3)))


def replaced(groups):
    groups[1]["params"] = [torch.nn.Parameter(param.detach().clone()) for param in groups[1]["params"]]


def another_group(groups):
    groups.append({**groups[0], "params": [torch.nn.Parameter(torch.ones(3))]})


CHANGES = {
    appended: r"a tensor of shape \[3\] is new in group 1, place 2\. On all ranks alike, use optimizer\.add_param_group",
    replaced: r"shape \[8, 8\] is new in group 1, place 0; a tensor of shape \[8\] is new in group 1, place 1\.",
    another_group: r"shape \[3\] is new in group 2, place 0",
}


@pytest.mark.parametrize("op", ["Average", "Adasum"])
@pytest.mark.parametrize("change", CHANGES)
def test_parameters_given_behind_the_wrapper(hvd, change, op):
    if op == "Adasum" and hvd.size() & (hvd.size() - 1):
        pytest.skip("the number of ranks is no power of two")

    def make(params):
        first, second, *others = list(params)
        return sgd([{"params": [first, second]}, {"params": others[:2]}])

    pair = Pair(hvd, make, op=getattr(hvd, op))
    pair.backward(0)
    pair.step()
    change(pair.optimizer.param_groups)
    pair.zero()
    pair.backward(1)
    with pytest.raises(InvalidArgumentError, match=CHANGES[change]):
        pair.optimizer.step()
    hvd.DistributedOptimizer(pair.optimizer, op=getattr(hvd, op))
    hvd.broadcast_parameters(pair.model.state_dict(), 0)
    pair.zero()
    pair.backward(1)
    params = [param for group in pair.optimizer.param_groups for param in group["params"]]
    sum((param.sum() * (1 + hvd.rank()) for param in params), torch.zeros(())).backward()
    pair.optimizer.step()
    assert_same_bits(params)


def test_a_compression_has_no_state_of_a_parameter_given_behind_the_wrapper(hvd):
    optimizer = hvd.DistributedOptimizer(sgd([torch.nn.Parameter(torch.ones(3))]), compression=hvd.Compression.powersgd())
    optimizer.param_groups[0]["params"].append(torch.nn.Parameter(torch.ones(3)))
    assert optimizer.state_dict()["hvdlite_compression"]["state"] == {}


@pytest.mark.parametrize("all_of_them", [False, True])
@pytest.mark.parametrize("kept_back", [False, True])
def test_swapped_parameters_have_lost_their_hooks(hvd, kept_back, all_of_them):
    pair = Pair(hvd, sgd)
    pair.backward(0)
    pair.step()
    params = list(pair.model.parameters())
    for param in params if all_of_them else params[3:4]:
        torch.utils.swap_tensors(param, torch.nn.Parameter(param.detach().clone()))
    pair.zero()

    def step():
        with pair.optimizer.no_sync() if kept_back else contextlib.nullcontext():
            pair.backward(1)
        pair.optimizer.step()

    with pytest.raises(InvalidArgumentError, match=r"parameters of optimizer\d+ were swapped .*2\.bias'.* Wrap the optimizer"):
        step()
    hvd.DistributedOptimizer(pair.optimizer, pair.model.named_parameters())
    for step in range(2, 4):
        pair.zero()
        pair.backward(step)
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_parameters_taken_away_or_put_elsewhere_are_fine(hvd):
    pair = Pair(hvd, sgd)
    for step in range(3):
        pair.zero()
        pair.backward(step)
        pair.step()
        for optimizer in (pair.optimizer, pair.twin_optimizer):
            optimizer.load_state_dict(optimizer.state_dict()) if step == 0 else None
            group = optimizer.param_groups[0]
            group["params"] = group["params"][:0:-1]
    pair.check_weights()
