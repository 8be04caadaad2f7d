"""Every optimizer of torch in every implementation, and schedulers, beside one process on the whole batch."""

import itertools
import warnings

import pytest
import torch
from reference import STEPS, Pair, adam, assert_close, assert_same_bits, mse, network, part_of, sgd, whole_batch
from torch.optim import lr_scheduler

OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Adamax": {"lr": 0.01},
    "Adadelta": {"lr": 1.0},
    "Adagrad": {"lr": 0.05},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "Rprop": {"lr": 0.01},
    "ASGD": {"lr": 0.05, "t0": 5},
    "Adafactor": {"lr": 0.05},
}


def maker(name, implementation):
    """A function that makes the optimizer, or a skip where this torch has none such."""
    make = getattr(torch.optim, name, None)
    if make is None:
        pytest.skip(f"this torch has no {name}")
    options = dict(OPTIMIZERS[name])
    if implementation != "loop":
        options[implementation] = True
    try:
        make([torch.zeros(1, requires_grad=True)], **options)
    except (TypeError, RuntimeError) as error:
        pytest.skip(f"{name} is not {implementation} here: {error}")
    return lambda params: make(params, **options)


@pytest.mark.parametrize("implementation", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(hvd, name, implementation):
    pair = Pair(hvd, maker(name, implementation), tolerance=1e-9)
    before = [param.detach().clone() for param in pair.model.parameters()]
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero(set_to_none=step % 2 == 0)
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.step()
    pair.check_weights()
    assert not any(torch.equal(*both) for both in zip(before, pair.model.parameters(), strict=True))


def test_groups_with_rates_of_their_own(hvd):
    """And an option that is changed by hand on the way."""

    def make(params):
        first, *rest = params
        return torch.optim.AdamW([{"params": [first], "lr": 0.001, "weight_decay": 0.0}, {"params": rest}], lr=0.01)

    pair = Pair(hvd, make)
    for step in range(STEPS):
        for optimizer in (pair.optimizer, pair.twin_optimizer):
            optimizer.param_groups[1]["lr"] *= 0.9
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.step()
    pair.check_weights()


class SignDescent(torch.optim.Optimizer):
    """An optimizer as a user writes one, with a closure that is optional and no decorator."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self.taken = 0

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for param in group["params"]:
                param.data.add_(torch.sign(param.grad), alpha=-group["lr"])
        self.taken += 1
        return loss


@pytest.mark.parametrize("accumulate", [False, True])
def test_an_optimizer_of_the_users_own(hvd, accumulate):
    """With no_sync its step() has to find the reduced gradients: the signs of this rank's alone would be others."""
    pair = Pair(hvd, lambda params: SignDescent(params, 0.01))
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        if accumulate:
            with pair.optimizer.no_sync():
                mse(pair.model, *part).backward()
        else:
            mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.step()
    pair.check_weights()
    assert pair.optimizer.taken == STEPS


SCHEDULERS = {
    "step": lambda opt: lr_scheduler.StepLR(opt, 3, 0.5),
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step)),
    "one cycle": lambda opt: lr_scheduler.OneCycleLR(opt, 0.1, total_steps=STEPS + 1),  # changes the momentum, too
    "warmup": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(opt, STEPS)], [5]
    ),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=1, threshold=0.2),
}


@pytest.mark.parametrize("before_wrapping", [True, False])
@pytest.mark.parametrize("make_optimizer", [sgd, adam])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(hvd, name, make_optimizer, before_wrapping):
    """One that was made before has kept the original class's step, and counts steps to warn of a wrong order."""
    model, twin = network(), network()
    optimizer, twin_optimizer = make_optimizer(model.parameters()), make_optimizer(twin.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if before_wrapping:
            scheduler = SCHEDULERS[name](optimizer)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        if not before_wrapping:
            scheduler = SCHEDULERS[name](optimizer)
        twin_scheduler = SCHEDULERS[name](twin_optimizer)
        rates = []
        for step in range(STEPS):
            whole = whole_batch(step, hvd.size())
            optimizer.zero_grad()
            twin_optimizer.zero_grad()
            loss = mse(model, *part_of(whole, hvd.rank()))
            loss.backward()
            twin_loss = mse(twin, *whole)
            twin_loss.backward()
            optimizer.step()
            twin_optimizer.step()
            if name == "plateau":
                scheduler.step(hvd.allreduce(loss.detach(), name="plateau").item())
                twin_scheduler.step(twin_loss.item())
            else:
                scheduler.step()
                twin_scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
            assert rates[-1] == twin_optimizer.param_groups[0]["lr"]
    assert len(set(rates)) > 1
    assert_close(list(model.parameters()), list(twin.parameters()))
    assert_same_bits(list(model.parameters()))


def test_averaged_weights(hvd):
    """Stochastic weight averaging as torch's documentation writes it."""
    pair = Pair(hvd, sgd)
    means = [torch.optim.swa_utils.AveragedModel(model) for model in (pair.model, pair.twin)]
    schedulers = [torch.optim.swa_utils.SWALR(opt, swa_lr=0.05) for opt in (pair.optimizer, pair.twin_optimizer)]
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.step()
        if step > STEPS // 2:
            for mean, model, scheduler in zip(means, (pair.model, pair.twin), schedulers, strict=True):
                mean.update_parameters(model)
                scheduler.step()
    pair.check_weights()
    assert_close(list(means[0].parameters()), list(means[1].parameters()))
    assert_same_bits(list(means[0].parameters()))


def clip_by_norm(params):
    torch.nn.utils.clip_grad_norm_(params, 0.1)


def clip_each_layer(params):
    for layer in zip(params[::2], params[1::2], strict=True):
        torch.nn.utils.clip_grad_norm_(layer, 0.05, norm_type=float("inf"), error_if_nonfinite=True)


def clip_by_value(params):
    torch.nn.utils.clip_grad_value_(params, 0.02)


WAYS = ("stock", "synchronized", "skipped", "accumulated")
CLIPS = (clip_by_norm, clip_each_layer, clip_by_value)


# Each two of the three go together; the other half is slow.
@pytest.mark.parametrize(
    ("way", "op", "clip"),
    [
        pytest.param(
            way, op, clip, marks=[] if (WAYS.index(way) + CLIPS.index(clip) + (op == "Sum")) % 2 else [pytest.mark.slow]
        )
        for way, op, clip in itertools.product(WAYS, ("Average", "Sum"), CLIPS)
    ],
)
def test_clipping(hvd, way, op, clip):
    """As torch writes it; as old scripts do, with and without skip_synchronize; and after passes that were kept back."""
    pair = Pair(hvd, sgd, op=getattr(hvd, op))
    factor = hvd.size() if op == "Sum" else 1
    clipped = 0
    for step in range(STEPS):
        part, whole = pair.parts(step)
        pair.zero()
        if way == "accumulated":
            with pair.optimizer.no_sync():
                mse(pair.model, *part).backward()
            (mse(pair.twin, *whole) * factor).backward()
            part, whole = pair.parts(1000 + step)
        mse(pair.model, *part).backward()
        (mse(pair.twin, *whole) * factor).backward()
        if way in ("synchronized", "skipped"):
            pair.optimizer.synchronize()
        before = [param.grad.clone() for param in pair.model.parameters()]
        clip(list(pair.model.parameters()))
        clip(list(pair.twin.parameters()))
        clipped += not all(torch.equal(old, new.grad) for old, new in zip(before, pair.model.parameters(), strict=True))
        if way == "skipped":
            with pair.optimizer.skip_synchronize():
                pair.optimizer.step()
        else:
            pair.optimizer.step()
        pair.twin_optimizer.step()
        pair.check_grads()
    assert clipped == STEPS
    pair.check_weights()
