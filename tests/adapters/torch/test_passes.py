"""Every way to arrive at a step: several backward passes, parts of passes, passes that are not reduced."""

import pytest
import torch
from reference import STEPS, Pair, assert_close, grads_of, mse, network, sgd

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
            pair.backward(10 * step + passes)
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
            pair.backward(10 * step + passes)
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
            pair.backward(10 * step + passes)
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
            pair.backward(10 * step + passes)
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
