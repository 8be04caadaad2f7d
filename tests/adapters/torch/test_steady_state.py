"""Once the ranks of a host know a training step, they agree on all of it in shared memory: nobody sends a message."""

import pytest
import torch
from reference import mse, network, part_of, sgd, whole_batch
from support.limits import eventually
from support.rest import awaits_others
from support.world import WORLD

from hvdlite.errors import MismatchError
from hvdlite.runtime import RUNTIME

# A rank that waits long for a slow one would tell rank 0 so in a message.
ENVIRONMENT = {"HVDLITE_DEADLOCK_TIMEOUT": "0"}
WARM_UP = 3  # steps: the first compares the models, and makes the plan and its places


def messages_of_steps(hvd, model, optimizer, steps, set_to_none):
    """How many control messages this rank sends in so many steps, in which it agrees on something all the same."""
    before = hvd.stats()
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank())).backward()
        optimizer.step()
    spent = hvd.stats() - before
    assert spent.steps == steps
    assert spent.agreed_in_memory >= steps * len(list(model.parameters()))
    return spent.control_messages


def wrapped(hvd):
    """A model of several parameters, in several buckets, and its optimizer."""
    model = network()
    return model, hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_training_step_sends_no_control_messages(hvd, set_to_none):
    model, optimizer = wrapped(hvd)
    messages_of_steps(hvd, model, optimizer, WARM_UP, set_to_none)
    assert messages_of_steps(hvd, model, optimizer, 10, set_to_none) == 0


def test_nor_does_it_when_the_two_ways_to_clear_gradients_take_turns(hvd):
    model, optimizer = wrapped(hvd)
    for set_to_none in (True, False):
        messages_of_steps(hvd, model, optimizer, WARM_UP, set_to_none)
    for number in range(6):
        assert messages_of_steps(hvd, model, optimizer, 1, set_to_none=number % 2 == 0) == 0


def asked_in_turn(hvd, late, count, name):
    """The result of an allreduce of so many ones that some ranks ask for when the others have done so."""
    if late:
        WORLD.Barrier()
    before = RUNTIME.engine.counters()
    handle = hvd.allreduce_async(torch.ones(count), name=name, op=hvd.Sum)
    if not late:
        assert eventually(lambda: awaits_others(RUNTIME.engine, before))
        WORLD.Barrier()
    return hvd.synchronize(handle).tolist()


@pytest.mark.parametrize("last", ["first rank", "last rank"])
def test_after_a_mismatch_there_are_none_again(hvd, last):
    """Whoever of them asks last, with something else than the others."""
    model, optimizer = wrapped(hvd)
    messages_of_steps(hvd, model, optimizer, WARM_UP, True)
    differs = hvd.rank() == (0 if last == "first rank" else hvd.size() - 1)
    for _ in range(3):
        with pytest.raises(MismatchError, match="allreduce of 'differs'"):
            asked_in_turn(hvd, differs, 4 + differs, "differs")
    assert messages_of_steps(hvd, model, optimizer, 10, True) == 0
    # So it is with the name itself, once it was agreed on; rank 0 asks first.
    for _ in range(WARM_UP):
        assert asked_in_turn(hvd, hvd.rank() != 0, 4, "differs") == 4 * [hvd.size()]
    before = hvd.stats()
    assert asked_in_turn(hvd, hvd.rank() != 0, 4, "differs") == 4 * [hvd.size()]
    assert (hvd.stats() - before).control_messages == 0
