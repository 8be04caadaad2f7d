"""The ranks compare their models once, soon after the first update, and look whether they read the same data."""

import logging
import math
import re

import pytest
import torch
from reference import adam, mse, network, part_of, sgd, whole_batch

from hvdlite.errors import MismatchError

MORE_RANKS = (3,)


def differing(hvd):
    """A model whose first weight is this rank's own."""
    model = network()
    with torch.no_grad():
        model[0].weight[1, 2] += hvd.rank() + 1.0
    return model


def wrapped(hvd, model, make=sgd, **options):
    return hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)


def train(hvd, model, optimizer, steps=5, same_data=False):
    for step in range(steps):
        optimizer.zero_grad()
        mse(model, *part_of(whole_batch(step, hvd.size()), 0 if same_data else hvd.rank())).backward()
        optimizer.step()


def are_equal(hvd, model):
    weights = hvd.allgather(model[0].weight.detach()[None], name="weights")
    return bool((weights == weights[0]).all())


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "hvdlite"]


@pytest.mark.parametrize("make", [sgd, adam])
def test_different_parameters_are_an_error_that_names_them_and_the_ranks(hvd, make):
    model = differing(hvd)
    optimizer = wrapped(hvd, model, make)
    train(hvd, model, optimizer, 1)
    with pytest.raises(MismatchError) as raised:
        train(hvd, model, optimizer, 1)
    text = str(raised.value)
    assert "the ranks do not train one model: after the first update, the parameter '0.weight'" in text
    values = hvd.allgather(model[0].weight.detach()[1, 2][None], name="values").tolist()
    for rank, value in enumerate(values):
        assert f"{value:.9g} on rank {rank}" in text
    assert "element [1, 2] is " in text
    assert "hvd.broadcast_parameters(model.state_dict(), root_rank=0)" in text
    assert "start_check='off'" in text
    train(hvd, model, optimizer)  # it says so once


def test_a_warning_instead(hvd, caplog):
    model = differing(hvd)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        train(hvd, model, wrapped(hvd, model, start_check="warn"))
    assert [line.count("'0.weight'") for line in lines(caplog)] == [1] * (hvd.rank() == 0)
    assert not are_equal(hvd, model)


@pytest.mark.parametrize("make", [sgd, adam])
def test_broadcast(hvd, make, caplog):
    model = differing(hvd)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        train(hvd, model, wrapped(hvd, model, make, start_check="broadcast"))
    assert are_equal(hvd, model)
    assert sum("Now all ranks have the parameters" in line for line in lines(caplog)) == (hvd.rank() == 0)


def test_off(hvd, caplog):
    model = differing(hvd)
    train(hvd, model, wrapped(hvd, model, start_check="off"))
    assert lines(caplog) == []
    assert not are_equal(hvd, model)


def test_rounding_is_a_warning(hvd, caplog):
    model = network()
    with torch.no_grad():
        model[0].weight[1, 2] *= 1 + hvd.rank() * 4 * torch.finfo(model[0].weight.dtype).eps
    with caplog.at_level(logging.WARNING, "hvdlite"):
        train(hvd, model, wrapped(hvd, model))
    assert [line.count("differ within rounding") for line in lines(caplog)] == [1] * (hvd.rank() == 0)


@pytest.mark.parametrize("values", [(1.0, math.inf), (math.inf, -math.inf), (1.0, math.nan), (1e308, -1e308)])
@pytest.mark.parametrize("shared", [1.0, math.inf])
def test_infinities_are_no_rounding(hvd, values, shared):
    """Elements whose gradients are zero keep their values."""
    weight = torch.nn.Parameter(torch.tensor([1.0, values[hvd.rank() % 2], shared], dtype=torch.float64))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("weight", weight)])

    def step():
        optimizer.zero_grad()
        (weight[0] * hvd.rank()).backward()
        optimizer.step()

    step()
    with pytest.raises(MismatchError, match=re.escape(f"element [1] is {values[0]:.9g} on rank")):
        step()


def test_the_optimizers_state_is_compared_too(hvd):
    model = network()
    optimizer = adam(model.parameters())
    mse(model, *whole_batch(0, hvd.size())).backward()
    optimizer.step()
    optimizer.state[model[0].bias]["exp_avg"][0] += hvd.rank()
    with torch.no_grad():
        for group in optimizer.param_groups:
            group["lr"] = 0.0
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    with pytest.raises(MismatchError, match=r"the state of the optimizer 'exp_avg of 0.bias' differs: element \[0\] is "):
        train(hvd, model, optimizer)


def test_a_broadcast_between_the_first_two_steps_is_soon_enough(hvd):
    model = differing(hvd)
    optimizer = wrapped(hvd, model, adam)
    train(hvd, model, optimizer, 1)
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    train(hvd, model, optimizer)
    assert are_equal(hvd, model)


def test_ranks_that_accumulate_first_are_compared_after_their_update(hvd):
    """Each backward is reduced, and there are five of them before the first step."""
    model = differing(hvd)
    optimizer = wrapped(hvd, model)
    for step in range(5):
        mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank())).backward()
    optimizer.step()
    with pytest.raises(MismatchError, match=r"'0.weight'"):
        train(hvd, model, optimizer, 1)


def test_a_rank_that_skips_the_first_step_keeps_nobody_waiting(hvd):
    model = network()
    optimizer = wrapped(hvd, model)
    mse(model, *part_of(whole_batch(0, hvd.size()), hvd.rank())).backward()
    if hvd.rank():
        optimizer.step()
    with pytest.raises(MismatchError, match=r"0.000\d+ on rank 0|on rank 0, but"):
        train(hvd, model, optimizer)


def test_joined_ranks_abstain(hvd):
    """The last rank, whose model differs, leaves after one step."""
    last = hvd.size() - 1
    model = network() if hvd.rank() != last else differing(hvd)
    optimizer = wrapped(hvd, model)
    train(hvd, model, optimizer, 1)
    if hvd.rank() != last:
        train(hvd, model, optimizer)
        assert not optimizer._hvdlite.reducer.check.pending
    hvd.join()


def test_with_adasum_it_comes_before_the_first_step(hvd):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum needs a power of two of ranks")
    model = differing(hvd)
    before = model[0].weight.detach().clone()
    optimizer = wrapped(hvd, model, op=hvd.Adasum)
    with pytest.raises(MismatchError, match=r"before the first update, the parameter '0.weight' differs"):
        train(hvd, model, optimizer, 1)
    assert torch.equal(model[0].weight, before)


def test_with_adasum_the_states_may_differ(hvd):
    if hvd.size() & (hvd.size() - 1):
        pytest.skip("Adasum needs a power of two of ranks")
    model = network()
    train(hvd, model, wrapped(hvd, model, adam, op=hvd.Adasum))


def test_with_sharding_it_comes_before_the_first_step_makes_the_parameters_equal(hvd):
    model = differing(hvd)
    before = model[0].weight.detach().clone()
    optimizer = wrapped(hvd, model, adam, shard=True)
    with pytest.raises(MismatchError, match=r"before the first update, the parameter '0.weight' differs"):
        train(hvd, model, optimizer, 1)
    assert torch.equal(model[0].weight, before)


def load_state(model, optimizer, first):
    plain = adam(model.parameters())
    for param in model.parameters():
        param.grad = torch.ones_like(param) * first
    with torch.no_grad():
        kept = [param.clone() for param in model.parameters()]
        plain.step()
        for param, value in zip(model.parameters(), kept, strict=True):
            param.copy_(value)
    optimizer.load_state_dict(plain.state_dict())


def test_with_sharding_a_state_that_only_one_rank_has_loaded_is_an_error(hvd):
    model = network()
    optimizer = wrapped(hvd, model, adam, shard=True)
    if hvd.rank() == 1:
        load_state(model, optimizer, 1.0)
    with pytest.raises(MismatchError, match="before the first update, the optimizer has a state on rank 1, but none on rank"):
        train(hvd, model, optimizer, 1)


def test_with_sharding_the_loaded_states_are_compared(hvd):
    model = network()
    optimizer = wrapped(hvd, model, adam, shard=True)
    load_state(model, optimizer, 1.0 + hvd.rank())
    with pytest.raises(MismatchError, match=r"the state of the optimizer 'exp_avg of 0.\w+' \(and \d+ more\) differs"):
        train(hvd, model, optimizer, 1)
    optimizer = wrapped(hvd, model, adam, shard=True)
    load_state(model, optimizer, 1.0 + hvd.rank())
    hvd.broadcast_optimizer_state(optimizer, root_rank=1)  # the remedy
    train(hvd, model, optimizer)
    assert are_equal(hvd, model)


@pytest.mark.parametrize("same_data", [True, False])
def test_equal_gradients_on_all_ranks_are_a_warning(hvd, same_data, caplog):
    model = network()
    with caplog.at_level(logging.WARNING, "hvdlite"):
        train(hvd, model, wrapped(hvd, model), same_data=same_data)
    found = [line for line in lines(caplog) if "every rank computed the same gradient" in line]
    assert len(found) == (same_data and hvd.rank() == 0)
    assert all("DistributedSampler" in line for line in found)


def test_gradients_that_are_zero_are_no_sign_of_anything(hvd, caplog):
    model = network()
    optimizer = wrapped(hvd, model)
    with caplog.at_level(logging.WARNING, "hvdlite"):
        for _ in range(4):
            optimizer.zero_grad()
            (0.0 * model(whole_batch(0, 1)[0]).sum()).backward()
            optimizer.step()
    assert lines(caplog) == []


def test_an_optimizer_that_gets_parameters_later_is_not_compared_again(hvd):
    model, more = network(), network()
    optimizer = wrapped(hvd, model)
    train(hvd, model, optimizer)
    optimizer.add_param_group({"params": list(more.parameters())})
    with torch.no_grad():
        model[0].weight += hvd.rank()
    train(hvd, model, optimizer, 1)


def test_ranks_that_have_compared_before_do_so_again_with_those_that_have_not(hvd):
    """As where a rank comes back with a new process."""
    model = differing(hvd)
    optimizer = wrapped(hvd, model)
    if hvd.rank() == 0:
        check = optimizer._hvdlite.reducer.check
        check._open, check._rounds, check._compared = False, 3, True
    with pytest.raises(MismatchError, match=r"the parameter '0.weight'"):
        train(hvd, model, optimizer)


def test_ranks_with_other_modes(hvd):
    model = network()
    with pytest.raises(MismatchError, match=r"start_check is warn on rank 0, but start_check is off on rank"):
        train(hvd, model, wrapped(hvd, model, start_check="off" if hvd.rank() else "warn"))


def test_a_wrong_mode(hvd):
    with pytest.raises(ValueError, match=r"start_check='yes'\): it is None or one of 'error', 'broadcast', 'warn', 'off'"):
        wrapped(hvd, network(), start_check="yes")
    optimizers = [wrapped(hvd, network())]
    if hvd.rank() == 0:  # the refused call must not change the names of later optimizers
        with pytest.raises(ValueError, match="start_check='yes'"):
            wrapped(hvd, network(), start_check="yes")
    optimizers.append(wrapped(hvd, network()))
    numbers = [int(each._hvdlite.settings.prefix.removeprefix("optimizer")) for each in optimizers]
    assert numbers[1] == numbers[0] + 1


def test_the_remedies_in_a_process_set_name_it_and_a_root_that_belongs_to_it(hvd, caplog):
    if hvd.size() < 3:
        pytest.skip("needs two ranks besides rank 0")
    process_set = hvd.add_process_set([1, 2])
    model = differing(hvd)
    optimizer = wrapped(hvd, model, process_set=process_set)
    if hvd.rank() > 0:
        with pytest.raises(
            MismatchError, match=r"broadcast_parameters\(model.state_dict\(\), root_rank=1, process_set=process_set"
        ):
            train(hvd, model, optimizer)
        model = network()
        with caplog.at_level(logging.WARNING, "hvdlite"):
            train(hvd, model, wrapped(hvd, model, process_set=process_set), same_data=True)
        remedy = "num_replicas=process_set.size(), rank=process_set.rank()"
        assert any(remedy in line for line in lines(caplog)) == (hvd.rank() == 1)
    hvd.remove_process_set(process_set)
