"""Backward passes that raise, are interrupted or given up: training goes on, and no rank waits for another."""

import pytest
import torch
from mpi4py import MPI
from reference import FEATURES, Pair, assert_close, assert_same_bits, grads_of, mse, sgd
from support.limits import interrupted

from hvdlite.runtime import RUNTIME


class Fuse(torch.autograd.Function):
    """Raises in backward where it is told to."""

    @staticmethod
    def forward(ctx, values, blown):
        ctx.blown = blown
        return values.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.blown:
            raise RuntimeError("blown fuse")
        return grad, None


class Fused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = torch.nn.Linear(FEATURES, 5).double(), torch.nn.Linear(5, 3).double()
        self.blown = False

    def forward(self, inputs):
        return self.last(Fuse.apply(torch.tanh(self.first(inputs)), self.blown))


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_training_goes_on_after_backward_raised(hvd, at, everywhere, set_to_none):
    """Where only one rank raised, the ranks agree to skip that step."""
    pair = Pair(hvd, sgd, Fused)
    for step in range(6):
        part, whole = pair.parts(step)
        pair.zero(set_to_none=set_to_none)
        pair.model.blown = step == at and (everywhere or hvd.rank() == 1)
        try:
            mse(pair.model, *part).backward()
            fine = 1
        except RuntimeError:
            fine = 0
        assert fine == (not pair.model.blown)
        if step == at:
            if not everywhere:
                fine = int(hvd.allreduce(torch.tensor(fine), op=hvd.Min, name="fine"))
            assert not fine
            continue
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_raising_after_a_reduced_pass_keeps_that_pass(hvd):
    pair = Pair(hvd, sgd, Fused)
    for step in range(4):
        part, whole = pair.parts(step)
        pair.zero()
        pair.model.blown = False
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        if step in (0, 2):
            kept = [grad.clone() for grad in grads_of(pair.model)]
            pair.model.blown = True
            with pytest.raises(RuntimeError, match="blown fuse"):
                mse(pair.model, *part).backward()
            assert torch.equal(grads_of(pair.model)[0], kept[0])  # the fuse is in front of this layer
            pair.model.first.weight.grad, pair.model.first.bias.grad = kept[:2]
            pair.optimizer.synchronize()
            assert_close(grads_of(pair.model)[:2], grads_of(pair.twin)[:2])
            pair.zero()
            continue
        pair.check_grads()
        pair.step()
    assert_same_bits(list(pair.model.parameters()))


def test_interrupting_the_wait_for_others(hvd):
    """backward() raises what the signal handler raised; what was in flight is made good before the next pass."""

    def submitted():
        return RUNTIME.engine.counters()["submitted"]

    pair = Pair(hvd, sgd)
    seen = [submitted()]
    for step in range(5):
        part, whole = pair.parts(step)
        pair.zero()
        if step != 2:
            mse(pair.model, *part).backward()
            mse(pair.twin, *whole).backward()
            pair.check_grads()
            pair.step()
        elif hvd.rank() == 0:
            loss = mse(pair.model, *part)
            interrupted(loss.backward, begun=lambda: submitted() > seen[2])  # it waits at the end of a pass only
            MPI.COMM_WORLD.bcast(None)
        else:  # rank 0 waits for this one, which waits until that was interrupted
            MPI.COMM_WORLD.bcast(None)
            mse(pair.model, *part).backward()
        seen.append(submitted())
    pair.check_weights()


def test_replacing_a_gradient_inside_backward_is_refused(hvd):
    pair = Pair(hvd, sgd)
    part, whole = pair.parts(0)
    hooks = [
        param.register_post_accumulate_grad_hook(lambda param: setattr(param, "grad", None))
        for param in pair.model[0:1].parameters()
    ]
    mse(pair.model, *part).backward()  # nothing is launched before the end of the first pass: these are sent as absent
    assert pair.model[0].weight.grad is None
    with pytest.raises(ValueError, match=r"gradient of parameter 'optimizer\d+.0.(weight|bias)' was replaced while it was"):
        mse(pair.model, *part).backward()
    for hook in hooks:
        hook.remove()
    pair.zero()
    mse(pair.model, *part).backward()
    mse(pair.twin, *whole).backward()
    pair.check_grads()


@pytest.mark.parametrize("how", ["zeros", "none", "module"])
def test_giving_up_passes_that_were_kept_back(hvd, how):
    """Rank 1 alone has a gradient of its last layer then. All ranks have zeros afterwards, or all None: an optimizer with
    momentum or weight decay makes a difference between these.
    """
    pair = Pair(hvd, sgd)
    for step in range(4):
        part, whole = pair.parts(step)
        if step == 2:
            for param in (*pair.model.parameters(), *pair.twin.parameters()):
                param.grad = None
            with pair.optimizer.no_sync():
                if hvd.rank() == 1:
                    mse(pair.model, *part).backward()
            mse(pair.twin, *whole).backward()
        (pair.model if how == "module" else pair.optimizer).zero_grad(set_to_none=how != "zeros")
        pair.twin.zero_grad(set_to_none=how != "zeros")
        inputs = [list(model[0].parameters()) if step == 2 else None for model in (pair.model, pair.twin)]
        mse(pair.model, *part).backward(inputs=inputs[0])
        mse(pair.twin, *whole).backward(inputs=inputs[1])
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("through", ["optimizer", "module"])
def test_a_reset_drops_what_was_reduced_before_a_pass_that_was_kept_back(hvd, through):
    """Also where this rank has no gradient in the next pass, and gets the others'."""
    pair = Pair(hvd, sgd)
    for step in range(4):
        part, whole = pair.parts(step)
        mse(pair.model, *part).backward()
        with pair.optimizer.no_sync():
            mse(pair.model, *part).backward()
        (pair.optimizer if through == "optimizer" else pair.model).zero_grad()
        pair.twin.zero_grad()
        if hvd.rank() == 0:
            mse(pair.model, *part).backward()
        else:
            torch.autograd.backward(pair.model[4].bias.sum() * 0.0)
        (mse(pair.twin, *[rows[: len(part[0])] for rows in whole]) / hvd.size()).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()
