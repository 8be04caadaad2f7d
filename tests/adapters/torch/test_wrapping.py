"""The wrapped optimizer is still the optimizer it was; wrong arguments and differing ranks are refused with reasons.

Over 400 lines, because there is a case for each way of wrapping, wrapping again, saving and deleting.
"""

import copy
import gc
import io
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
from reference import STEPS, Pair, adam, assert_close, assert_same_bits, grads_of, mse, network, part_of, sgd, whole_batch

from hvdlite.torch import reducer


def train(hvd, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank())).backward()
        optimizer.step()


def train_alone(hvd, model, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        mse(model, *whole_batch(step, hvd.size())).backward()
        optimizer.step()


def test_it_stays_the_same_object(hvd):
    model = network()
    plain = adam(model.parameters())
    train_alone(hvd, model, plain, range(2))
    state, groups = plain.state, plain.param_groups
    calls = []
    plain.register_step_post_hook(lambda *_: calls.append(1))
    wrapped = hvd.DistributedOptimizer(plain, model.named_parameters())
    assert wrapped is plain
    assert isinstance(wrapped, torch.optim.Adam)
    assert type(wrapped).__name__ == "Adam"
    assert repr(wrapped).startswith("Adam (")
    assert wrapped.state is state
    assert wrapped.param_groups is groups
    assert int(wrapped.state[model[0].weight]["step"]) == 2
    train(hvd, model, wrapped, [2])
    assert calls == [1]


@pytest.mark.parametrize("way", ["pickle", "save", "deepcopy"])
def test_it_is_saved_as_the_plain_optimizer(hvd, way):
    model = network()
    wrapped = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters())
    train(hvd, model, wrapped, range(2))
    if way == "pickle":
        restored = pickle.loads(pickle.dumps(wrapped))
    elif way == "deepcopy":
        restored = copy.deepcopy(wrapped)
    else:
        file = io.BytesIO()
        torch.save(wrapped, file)
        file.seek(0)
        restored = torch.load(file, weights_only=False)
    assert type(restored) is torch.optim.Adam
    for one, other in zip(restored.state.values(), wrapped.state.values(), strict=True):
        assert torch.equal(one["exp_avg"], other["exp_avg"])
    assert restored.state_dict()["param_groups"] == wrapped.state_dict()["param_groups"]
    restored.step()


def test_the_model_can_be_copied_and_saved(hvd):
    model = network()
    wrapped = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    train(hvd, model, wrapped, range(1))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.zero_grad()
        part = part_of(whole_batch(0, hvd.size()), hvd.rank())
        mse(other, *part).backward()
        twin = network()
        twin.load_state_dict(other.state_dict())
        mse(twin, *part).backward()
        assert_close(grads_of(other), grads_of(twin))


@pytest.mark.parametrize("wrapped_again", [True, False])
def test_resuming_from_a_checkpoint(hvd, wrapped_again):
    """Saved from the wrapped optimizer, continued with a new one, wrapped or plain."""
    straight, twin_optimizer = network(), None
    twin_optimizer = adam(straight.parameters())
    train_alone(hvd, straight, twin_optimizer, range(6))
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters())
    train(hvd, model, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file)
    resumed = network(seed=99)
    resumed.load_state_dict(saved["model"])
    other = adam(resumed.parameters())
    if wrapped_again:
        other = hvd.DistributedOptimizer(other, resumed.named_parameters())
    other.load_state_dict(saved["optimizer"])
    (train if wrapped_again else train_alone)(hvd, resumed, other, range(3, 6))
    assert_close(list(resumed.parameters()), list(straight.parameters()))
    assert_same_bits(list(resumed.parameters()))


@pytest.mark.parametrize("make_optimizer", [sgd, adam])
@pytest.mark.parametrize("loaded", ["before wrapping", "after wrapping", "on rank 0 only"])
def test_resuming_from_a_plain_optimizers_checkpoint(hvd, make_optimizer, loaded):
    """A script that trained alone before, or on other ranks: there is no mark of us in the file."""
    straight = network()
    straight_optimizer = make_optimizer(straight.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(straight_optimizer, 8, 0.5)
    file = io.BytesIO()
    for step in range(STEPS + 10):
        if step == 10:
            state = {"model": straight, "optimizer": straight_optimizer, "scheduler": scheduler}
            torch.save({name: each.state_dict() for name, each in state.items()}, file)
        train_alone(hvd, straight, straight_optimizer, [step])
        scheduler.step()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model = network(seed=50 + hvd.rank())
    optimizer = make_optimizer(model.parameters())
    if loaded != "before wrapping":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8, 0.5)
    if loaded != "on rank 0 only" or hvd.rank() == 0:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    if loaded == "before wrapping":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    if loaded == "on rank 0 only":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        scheduler.load_state_dict(hvd.broadcast_object(scheduler.state_dict(), root_rank=0))
    for step in range(10, STEPS + 10):
        train(hvd, model, optimizer, [step])
        scheduler.step()
    assert_close(list(model.parameters()), list(straight.parameters()))
    assert_same_bits(list(model.parameters()))
    assert optimizer.state_dict()["param_groups"] == straight_optimizer.state_dict()["param_groups"]


def test_wrapping_after_training_alone_continues(hvd):
    model, twin = network(), network()
    optimizer, twin_optimizer = adam(model.parameters()), adam(twin.parameters())
    train_alone(hvd, model, optimizer, range(3))
    train_alone(hvd, twin, twin_optimizer, range(6))
    train(hvd, model, hvd.DistributedOptimizer(optimizer, model.named_parameters()), range(3, 6))
    assert_close(list(model.parameters()), list(twin.parameters()))


def test_wrapping_twice_replaces_the_first(hvd):
    model, twin = network(), network()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), backward_passes_per_step=3)
    train(hvd, model, optimizer, [0])
    again = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    assert again is optimizer
    assert type(again).__mro__[2] is torch.optim.SGD
    assert again.backward_passes_per_step == 1
    twin_optimizer = sgd(twin.parameters())
    train_alone(hvd, twin, twin_optimizer, [0])
    train(hvd, model, again, [1, 2])
    train_alone(hvd, twin, twin_optimizer, [1, 2])
    assert_close(list(model.parameters()), list(twin.parameters()))


def test_parameter_groups_may_be_added(hvd):
    pair = Pair(hvd, lambda params: torch.optim.SGD(list(params)[2:], lr=0.1))
    for step in range(4):
        if step == 2:
            for model, optimizer in ((pair.model, pair.optimizer), (pair.twin, pair.twin_optimizer)):
                optimizer.add_param_group({"params": list(model.parameters())[:2], "lr": 0.01})
        part, whole = pair.parts(step)
        pair.zero()
        pair.model.zero_grad()
        pair.twin.zero_grad()
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
        assert_close(grads_of(pair.model)[2:], grads_of(pair.twin)[2:])
        pair.step()
    pair.check_weights()


def test_an_optimizer_that_is_refused_stays_plain(hvd):
    gaps = torch.nn.Parameter(torch.zeros(4, 8)[:, ::2])
    common = torch.nn.Parameter(torch.zeros(3))
    kept = hvd.DistributedOptimizer(sgd([common]))
    for param, options in ((gaps, {"shard": True}), (common, {"op": hvd.Sum})):
        plain = sgd([param])
        before = {name: copy.copy(value) for name, value in vars(plain).items()}
        with pytest.raises(RuntimeError, match=r"have gaps between|differently"):
            hvd.DistributedOptimizer(plain, **options)
        assert type(plain) is torch.optim.SGD
        assert vars(plain).keys() == before.keys()
        assert plain._optimizer_step_pre_hooks == before["_optimizer_step_pre_hooks"]
        assert plain._optimizer_step_post_hooks == before["_optimizer_step_post_hooks"]
    common.grad = torch.full_like(common, hvd.rank() + 1.0)
    kept.step()
    assert_close([common.grad], [torch.full_like(common, (hvd.size() + 1) / 2)])


def test_an_interrupted_wrapping_leaves_the_optimizer_as_it_was(hvd, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    plain, wrapped = (sgd([torch.nn.Parameter(torch.zeros(3))]) for _ in range(2))
    hvd.DistributedOptimizer(wrapped)
    added = torch.nn.Parameter(torch.zeros(3))
    monkeypatch.setattr(reducer, "install", interrupt)
    with pytest.raises(KeyboardInterrupt):
        hvd.DistributedOptimizer(plain)
    assert type(plain) is torch.optim.SGD
    with pytest.raises(KeyboardInterrupt):
        wrapped.add_param_group({"params": [added]})
    assert len(wrapped.param_groups) == 1
    monkeypatch.undo()
    wrapped.param_groups[0]["params"][0].grad = torch.ones(3)
    wrapped.step()
    wrapped.add_param_group({"params": [added]})
    (added * (hvd.rank() + 1.0)).sum().backward()
    assert_close([added.grad], [torch.full((3,), (hvd.size() + 1) / 2)])


def test_a_frozen_parameter_may_be_of_inference_mode(hvd):
    with torch.inference_mode():
        frozen = torch.nn.Parameter(torch.zeros(3), requires_grad=False)  # torch refuses hooks on it
    own, added = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    optimizer = hvd.DistributedOptimizer(sgd([own, frozen]))
    optimizer.add_param_group({"params": [added]})
    ((own + added) * (hvd.rank() + 1.0)).sum().backward()
    assert_close([own.grad, added.grad], [torch.full((3,), (hvd.size() + 1) / 2)] * 2)


class Failing:
    """A compression that can fail."""

    fails = False

    @classmethod
    def compress(cls, tensor):
        if cls.fails:
            raise ArithmeticError("it fails")
        return tensor, None

    @staticmethod
    def decompress(tensor, _):
        return tensor


def test_parameters_that_one_of_their_owners_cannot_leave_stay_where_they_are(hvd):
    params = [torch.nn.Parameter(torch.zeros(3)) for _ in range(2)]
    kept = [hvd.DistributedOptimizer(sgd([param]), compression=Failing) for param in params]
    Failing.fails = True
    with pytest.raises(ArithmeticError):
        params[1].sum().backward()
    with pytest.raises(ArithmeticError):
        hvd.DistributedOptimizer(sgd(params))
    Failing.fails = False
    (sum(params) * (hvd.rank() + 1.0)).sum().backward()
    assert_close([params[0].grad], [torch.full((3,), (hvd.size() + 1) / 2)])
    assert kept


def test_a_group_that_is_refused_is_not_added(hvd):
    common, own = (torch.nn.Parameter(torch.zeros(3)) for _ in range(2))
    kept = hvd.DistributedOptimizer(sgd([common]))
    optimizer = hvd.DistributedOptimizer(sgd([own]), op=hvd.Sum)
    with pytest.raises(ValueError, match="differently"):
        optimizer.add_param_group({"params": [common]})
    assert [group["params"] for group in optimizer.param_groups] == [[own]]
    own.grad = torch.ones(3)
    optimizer.step()
    assert_close([own.grad], [torch.full((3,), float(hvd.size()))])
    assert kept is not None


def test_optimizers_of_a_process_set_that_is_gone_do_not_matter(hvd):
    param = torch.nn.Parameter(torch.zeros(3))
    former = hvd.add_process_set(range(hvd.size()))
    optimizers = [hvd.DistributedOptimizer(sgd([param]), process_set=former)]
    hvd.remove_process_set(former)
    optimizers.append(hvd.DistributedOptimizer(sgd([param])))
    (param * (hvd.rank() + 1.0)).sum().backward()
    assert_close([param.grad], [torch.full((3,), (hvd.size() + 1) / 2)])


def test_nothing_keeps_model_and_optimizer_alive(hvd):
    model = network()
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(hvd, model, optimizer, range(3))
    gone = [weakref.ref(optimizer), weakref.ref(next(model.parameters())), weakref.ref(model)]
    del model, optimizer, scheduler
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


@pytest.mark.parametrize("owner_first", [False, True])
def test_gradients_of_optimizers_that_are_gone_are_not_reduced(hvd, owner_first):
    param = torch.nn.Parameter(torch.zeros(3))
    optimizers = [hvd.DistributedOptimizer(sgd([param])) for _ in range(2)]  # the second one reduces the gradient for both
    for place in [1, 0] if owner_first else [0, 0]:
        (param * (hvd.rank() + 1.0)).sum().backward()
        assert_close([param.grad], [torch.full((3,), (hvd.size() + 1) / 2)])
        param.grad = None
        del optimizers[place]
        gc.collect()
    (param * (hvd.rank() + 1.0)).sum().backward()
    assert_close([param.grad], [torch.full((3,), hvd.rank() + 1.0)])


def test_wrong_arguments(hvd):
    model = network()
    named = list(model.named_parameters())

    def wrap(*args, **kwargs):
        return hvd.DistributedOptimizer(sgd(model.parameters()), *args, **kwargs)

    with pytest.raises(ValueError, match="named_parameters should be a sequence of tuples"):
        wrap(model.parameters())
    with pytest.raises(ValueError, match=r"must be unique\. Found duplicates: same"):
        wrap([("same", param) for _, param in named])
    with pytest.raises(ValueError, match=r"one or more model parameters were not named.*: 0.2, 0.3, 0.4, 0.5"):
        wrap(named[:2])
    with pytest.raises(ValueError, match="backward_passes_per_step must be > 0"):
        wrap(backward_passes_per_step=0)
    with pytest.raises(ValueError, match="gradient_predivide_factor not supported with op != Average"):
        wrap(op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="with op=Average, op=Sum or op=Adasum"):
        wrap(op=hvd.Max)
    with pytest.raises(ValueError, match="groups should be a positive integer or a list of lists"):
        wrap(groups=0)
    with pytest.raises(ValueError, match="A parameter can only appear once in groups"):
        wrap(groups=[[named[0][1]], [named[0][1]]])
    with pytest.raises(ValueError, match="groups must consist of parameters of this optimizer"):
        wrap(groups=[["0.weight"]])
    with pytest.raises(ValueError, match="groups must consist of parameters of this optimizer"):
        wrap(groups=[[torch.nn.Parameter(torch.ones(1))]])
    with pytest.raises(ValueError, match="groups should be a positive integer or a list of lists"):
        wrap(groups=list(model.parameters()))
    with pytest.raises(ValueError, match="gradient_predivide_factor=0 must be > 0"):
        wrap(gradient_predivide_factor=0)
    with pytest.raises(ValueError, match=r"compression must have the methods .* or be a codec .*, got 'fp16'"):
        wrap(compression="fp16")
    with pytest.raises(ValueError, match="backward_passes_per_step must be > 0"):
        wrap().set_backward_passes_per_step(0)
    with pytest.raises(ValueError, match="is no ProcessSet"):
        wrap(process_set=[0, 1])
    with pytest.raises(ValueError, match=r"wraps a torch.optim.Optimizer, got a list"):
        hvd.DistributedOptimizer([])
    with pytest.warns(DeprecationWarning, match="num_groups"):
        wrap(num_groups=2)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("shape", r"0.weight is float64 \[8, 6\] on ranks? 0.*, but optimizer\d+.0.weight is float64 \[9, 6\] on rank"),
        ("dtype", r"0.weight is float64 \[8, 6\] on ranks? 0.*, but optimizer\d+.0.weight is float32 \[8, 6\] on rank"),
        ("name", r"0.weight is float64.*, but optimizer\d+.zero.weight is float64"),
        ("count", r"4.bias is float64 \[3\] on ranks? 0.*, but missing on rank"),
        ("op", r"op is Average on ranks? 0.*, but op is Sum on rank"),
        ("frozen", r"is float64 \[8, 6\] on ranks? 0.*, but .* is float64 \[8, 6\] \(frozen\) on rank"),
        ("groups", r"groups is None on ranks? 0.*, but groups is 2 on rank"),
        ("gradient_predivide_factor", r"gradient_predivide_factor is 1.0 on ranks? 0.*, but .* is 2.0 on rank"),
        ("compression", r"compression is NoneCompressor on ranks? 0.*, but compression is FP16Compressor on rank"),
        ("backward_passes_per_step", r"backward_passes_per_step is 1 on ranks? 0.*, but .* is 2 on rank"),
        ("average_aggregated_gradients", r"average_aggregated_gradients is False on ranks? 0.*, but .* is True on rank"),
        ("sparse_as_dense", r"sparse_as_dense is False on ranks? 0.*, but sparse_as_dense is True on rank"),
    ],
)
def test_ranks_that_differ(hvd, what, message):
    odd = hvd.rank() == hvd.size() - 1
    model = network(hidden=9 if odd and what == "shape" else 8)
    if odd and what == "dtype":
        model.float()
    if odd and what == "frozen":
        model[0].weight.requires_grad_(False)
    names = [(name.replace("0", "zero") if odd and what == "name" else name, p) for name, p in model.named_parameters()]
    params = list(model.parameters())
    if odd and what == "count":
        params = params[:-1]
    values = {
        "op": hvd.Sum,
        "groups": 2,
        "gradient_predivide_factor": 2.0,
        "compression": hvd.Compression.fp16,
        "backward_passes_per_step": 2,
        "average_aggregated_gradients": True,
        "sparse_as_dense": True,
    }
    options = {what: values[what]} if odd and what in values else {}
    optimizer = hvd.DistributedOptimizer(sgd(params), names, **options)
    inputs, targets = part_of(whole_batch(0, hvd.size(), next(model.parameters()).dtype), hvd.rank())

    def reduce():
        model(inputs).sub(targets).square().mean().backward()
        optimizer.synchronize()  # a rank may have been told to make another pass first

    for _ in range(2):
        with pytest.raises(hvd.HorovodInternalError, match=message) as caught:
            reduce()
        assert f"on rank {hvd.size() - 1}" in str(caught.value)
    # The engine is fine.
    test_it_stays_the_same_object(hvd)


def test_without_torch_there_is_a_clear_error(hvd):
    if hvd.rank() != 0:
        return
    program = (
        "import sys, types\n"
        "sys.modules['torch'] = None\n"
        "try:\n"
        "    import hvdlite.torch\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "hvdlite.torch needs PyTorch" in ended.stdout
    assert "pip install torch" in ended.stdout
