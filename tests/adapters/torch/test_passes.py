"""Every way to arrive at a step: several passes, parts of passes, nested passes, and passes that raise."""

import pytest
import torch
from mpi4py import MPI
from reference import FEATURES, STEPS, Pair, assert_close, assert_same_bits, grads_of, mse, network, sgd
from support.limits import interrupted
from torch.utils.checkpoint import checkpoint

from hvdlite.runtime import RUNTIME

# --- several backward passes before a step ---------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("reset", ["none", "zeros", "module"])
def test_each_pass_is_reduced_once(hvd, op, reset):
    pair = Pair(hvd, sgd, op=getattr(hvd, op))
    factor = hvd.size() if op == "Sum" else 1
    for step in range(STEPS):
        if reset == "module":
            pair.model.zero_grad(set_to_none=False)
            pair.twin.zero_grad(set_to_none=False)
        else:
            pair.zero(set_to_none=reset == "none")
        for passes in range(3):
            part, whole = pair.parts(10 * step + passes)
            mse(pair.model, *part).backward()
            (mse(pair.twin, *whole) * factor).backward()
            pair.check_grads()
        pair.step()
    pair.check_weights()


def test_each_pass_is_rounded_once_under_compression(hvd):
    """What is reduced already must not travel in 16 bits again: the sum of passes is the sum of what each pass alone gives."""
    pair = Pair(hvd, sgd, lambda: network(dtype=torch.float32), compression=hvd.Compression.fp16)
    alone = []
    for passes in range(3):
        part, _ = pair.parts(passes, torch.float32)
        pair.zero()
        mse(pair.model, *part).backward()
        alone.append([grad.clone() for grad in grads_of(pair.model)])
    pair.zero()
    for passes in range(3):
        part, whole = pair.parts(passes, torch.float32)
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
    expected = [one + two + three for one, two, three in zip(*alone, strict=True)]
    for found, wanted in zip(grads_of(pair.model), expected, strict=True):
        assert torch.equal(found, wanted)
    assert_close(grads_of(pair.model), grads_of(pair.twin), 1e-2)


def test_gradients_changed_between_passes_stay_changed(hvd):
    pair = Pair(hvd, sgd)
    for step in range(STEPS):
        pair.zero()
        for passes in range(2):
            part, whole = pair.parts(10 * step + passes)
            mse(pair.model, *part).backward()
            mse(pair.twin, *whole).backward()
            for model in (pair.model, pair.twin):
                with torch.no_grad():
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
                    for param in model.parameters():
                        param.grad.add_(0.01 * param)
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_gradients_written_before_backward_are_kept_as_they_are(hvd):
    pair = Pair(hvd, sgd)
    for step in range(3):
        part, whole = pair.parts(step)
        for model in (pair.model, pair.twin):
            for param in model.parameters():
                param.grad = 0.1 * param.detach()  # decoupled weight decay by hand, say
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_retain_graph(hvd):
    pair = Pair(hvd, sgd, op=hvd.Sum)
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        loss, twin_loss = mse(pair.model, *part), mse(pair.twin, *whole) * hvd.size()
        for last in (False, True):
            loss.backward(retain_graph=not last)
            twin_loss.backward(retain_graph=not last)
            pair.check_grads()
        pair.step()
    pair.check_weights()


def test_backward_with_inputs(hvd):
    pair = Pair(hvd, sgd)
    for step in range(3):
        part, whole = pair.parts(step)
        pair.zero()
        for keep in (slice(0, 2), slice(3, None)):
            mse(pair.model, *part).backward(inputs=list(pair.model.parameters())[keep])
            mse(pair.twin, *whole).backward(inputs=list(pair.twin.parameters())[keep])
            pair.check_grads()
        assert grads_of(pair.model)[2] is None
        pair.step()
    pair.check_weights()


def test_autograd_grad_in_between_changes_nothing(hvd):
    """It runs the parameters' hooks but adds nothing to any gradient."""
    pair = Pair(hvd, sgd)
    for step in range(3):
        part, whole = pair.parts(step)
        pair.zero()
        for passes in range(2):
            mse(pair.model, *part).backward()
            mse(pair.twin, *whole).backward()
            before = grads_of(pair.model)
            torch.autograd.grad(mse(pair.model, *part), list(pair.model.parameters()))
            assert all(now is then for now, then in zip(grads_of(pair.model), before, strict=True)), passes
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_gradient_penalty(hvd):
    """A loss that holds gradients (create_graph), as in WGAN-GP."""
    pair = Pair(hvd, sgd)
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        for model, (inputs, targets) in ((pair.model, part), (pair.twin, whole)):
            inputs = inputs.clone().requires_grad_()
            (slopes,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
            loss = mse(model, inputs, targets) + slopes.square().sum(1).mean()
            loss.backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_backward_that_records_itself(hvd):
    pair = Pair(hvd, sgd)
    for step in range(3):
        part, whole = pair.parts(step)
        pair.zero()
        for _ in range(2):
            mse(pair.model, *part).backward(create_graph=True)
            mse(pair.twin, *whole).backward(create_graph=True)
        pair.check_grads()
        pair.step()
        pair.model.zero_grad()
        pair.twin.zero_grad()
    pair.check_weights()


# --- passes that are not reduced ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("passes_per_step", [2, 3])
def test_backward_passes_per_step(hvd, passes_per_step, compressed):
    """Summed over the passes, averaged over the ranks, not divided by the number of passes."""
    options = {"compression": hvd.Compression.fp16} if compressed else {}
    pair = Pair(hvd, sgd, tolerance=5e-3 if compressed else 1e-12, backward_passes_per_step=passes_per_step, **options)
    for step in range(STEPS):
        pair.zero()
        for passes in range(passes_per_step):
            part, whole = pair.parts(10 * step + passes)
            mse(pair.model, *part).backward()
            mse(pair.twin, *whole).backward()
            if passes < passes_per_step - 1:
                mine = torch.cat([grad.flatten() for grad in grads_of(pair.model)])
                theirs = torch.cat([grad.flatten() for grad in grads_of(pair.twin)])
                assert (mine - theirs).abs().max() > 1e-4  # this rank's alone
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("reset", ["optimizer", "module"])
def test_too_many_passes(hvd, reset):
    pair = Pair(hvd, sgd, backward_passes_per_step=2)
    part, _ = pair.parts(0)
    for _ in range(3):
        for _ in range(2):
            mse(pair.model, *part).backward()
        with pytest.raises(AssertionError, match="Gradients were computed more than backward_passes_per_step times before"):
            mse(pair.model, *part).backward()
        (pair.optimizer if reset == "optimizer" else pair.model).zero_grad()
    pair.optimizer.zero_grad()
    test_of = pair.parts(1)
    for _ in range(2):
        mse(pair.model, *test_of[0]).backward()
        mse(pair.twin, *test_of[1]).backward()
    pair.check_grads()


def test_step_before_all_passes(hvd):
    """As in Horovod, a step reduces what there is."""
    pair = Pair(hvd, sgd, backward_passes_per_step=4)
    for step in range(STEPS):
        pair.zero()
        for passes in range(2):
            part, whole = pair.parts(10 * step + passes)
            mse(pair.model, *part).backward()
            mse(pair.twin, *whole).backward()
        pair.step()
        pair.check_grads()
    pair.check_weights()


def test_set_backward_passes_per_step(hvd):
    pair = Pair(hvd, sgd)
    for step, passes_per_step in enumerate((1, 3, 2, 1)):
        pair.optimizer.set_backward_passes_per_step(passes_per_step)
        assert pair.optimizer.backward_passes_per_step == passes_per_step
        pair.zero()
        for passes in range(passes_per_step):
            part, whole = pair.parts(10 * step + passes)
            mse(pair.model, *part).backward()
            mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("ending", ["pass", "synchronize", "step"])
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_no_sync(hvd, ending, op):
    pair = Pair(hvd, sgd, op=getattr(hvd, op))
    factor = hvd.size() if op == "Sum" else 1
    for step in range(STEPS):
        pair.zero()
        with pair.optimizer.no_sync():
            for passes in range(2):
                part, whole = pair.parts(10 * step + passes)
                mse(pair.model, *part).backward()
                (mse(pair.twin, *whole) * factor).backward()
        if ending == "pass":
            part, whole = pair.parts(10 * step + 5)
            mse(pair.model, *part).backward()
            (mse(pair.twin, *whole) * factor).backward()
        elif ending == "synchronize":
            pair.optimizer.synchronize()
        if ending != "step":
            pair.check_grads()
        pair.step()
        pair.check_grads()
    pair.check_weights()


def test_no_sync_after_a_reduced_pass(hvd):
    pair = Pair(hvd, lambda params: torch.optim.SGD(params, lr=0.01), op=hvd.Sum)
    for step in range(STEPS):
        pair.zero()
        for passes in range(4):
            part, whole = pair.parts(10 * step + passes)
            (mse(pair.twin, *whole) * hvd.size()).backward()
            if passes in (1, 2):
                with pair.optimizer.no_sync():
                    mse(pair.model, *part).backward()
            else:
                mse(pair.model, *part).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_synchronize_more_than_once_reduces_once(hvd):
    pair = Pair(hvd, lambda params: torch.optim.SGD(params, lr=0.01), op=hvd.Sum)
    for step in range(STEPS):
        pair.zero()
        part, whole = pair.parts(step)
        mse(pair.model, *part).backward()
        (mse(pair.twin, *whole) * hvd.size()).backward()
        for _ in range(3):
            pair.optimizer.synchronize()
        pair.check_grads()
        pair.step()
        pair.optimizer.step()  # again, on the same gradients
        pair.twin_optimizer.step()
    pair.check_weights()


def test_gradients_computed_without_backward_are_reduced_by_step(hvd):
    pair = Pair(hvd, sgd)
    for step in range(3):
        part, whole = pair.parts(step)
        for model, data in ((pair.model, part), (pair.twin, whole)):
            params = list(model.parameters())
            for param, grad in zip(params, torch.autograd.grad(mse(model, *data), params), strict=True):
                param.grad = grad
        pair.step()
        pair.check_grads()
    pair.check_weights()


# --- nested passes -------------------------------------------------------------------------------------------------------


class Checkpointed(torch.nn.Module):
    """A shared layer inside and outside of checkpoints; the last layer is checkpointed as well."""

    def __init__(self, reentrant, everything):
        super().__init__()
        torch.manual_seed(5)
        self.first = torch.nn.Linear(FEATURES, 5)
        self.shared = torch.nn.Linear(5, 5)
        self.last = torch.nn.Linear(5, 3)
        self.double()
        self.reentrant = reentrant
        self.everything = everything

    def forward(self, inputs):
        def run(layer, values):
            return checkpoint(layer, values, use_reentrant=self.reentrant) if self.reentrant is not None else layer(values)

        inputs = inputs.clone().requires_grad_()
        hidden = run(self.first, inputs) if self.everything else self.first(inputs)
        hidden = torch.tanh(self.shared(hidden)) if not self.everything else run(self.shared, hidden)
        hidden = torch.tanh(run(self.shared, hidden))
        hidden = run(lambda values: torch.tanh(self.shared(values)), hidden)
        return run(self.last, hidden)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("op", ["Average", "Sum"])
def test_checkpoints(hvd, reentrant, everything, op):
    pair = Pair(hvd, sgd, lambda: Checkpointed(reentrant, everything), op=getattr(hvd, op))
    factor = hvd.size() if op == "Sum" else 1
    for step in range(4):
        pair.zero(set_to_none=step % 2 == 0)
        for passes in range(2):
            part, whole = pair.parts(10 * step + passes)
            mse(pair.model, *part).backward()
            (mse(pair.twin, *whole) * factor).backward()
            pair.check_grads()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("everything", [False, True])
def test_checkpoints_switched_on_later(hvd, everything):
    """By then complete buckets are launched before the pass is over, and a part of a gradient is still to come."""
    pair = Pair(hvd, sgd, lambda: Checkpointed(None, everything))
    for step in range(6):
        pair.model.reentrant = True if step in (2, 3) else None
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


def test_checkpoint_in_a_checkpoint(hvd):
    class Nested(torch.nn.Module):
        def __init__(self, nested):
            super().__init__()
            torch.manual_seed(5)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(FEATURES, FEATURES) for _ in range(3)).double()
            self.head = torch.nn.Linear(FEATURES, 3).double()
            self.nested = nested

        def inner(self, values):
            return torch.tanh(self.layers[2](values))

        def outer(self, values):
            values = torch.tanh(self.layers[1](values))
            values = checkpoint(self.inner, values, use_reentrant=True) if self.nested else self.inner(values)
            return self.layers[1](values)

        def forward(self, inputs):
            values = self.layers[0](inputs)
            values = checkpoint(self.outer, values, use_reentrant=True) if self.nested else self.outer(values)
            return self.head(values)

    pair = Pair(hvd, sgd, lambda: Nested(True))
    pair.twin.nested = False
    for step in range(4):
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


# --- passes that raise ---------------------------------------------------------------------------------------------------


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
            interrupted(loss.backward, begun=lambda: submitted() == 2 * seen[2] - seen[1])  # as many as in the pass before
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
