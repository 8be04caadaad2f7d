"""All ranks start from the root's model and optimizer."""

import copy

import pytest
import torch
from mpi4py import MPI
from reference import adam, assert_same_bits, mse, network, sgd, whole_batch

from hvdlite.errors import MismatchError

WORLD = MPI.COMM_WORLD


class Everything(torch.nn.Module):
    """Parameters and buffers of many kinds, different on each rank."""

    def __init__(self, rank):
        super().__init__()
        torch.manual_seed(100 + rank)
        self.norm = torch.nn.BatchNorm1d(4)
        self.norm.running_mean += rank
        self.norm.num_batches_tracked += 10 * rank
        self.images = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        self.half = torch.nn.Linear(3, 2).to(torch.bfloat16)
        self.turned = torch.nn.Parameter(torch.randn(3, 5).t())
        self.spectrum = torch.nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.register_buffer("mask", torch.rand(7) < 0.5)
        self.register_buffer("bytes", torch.randint(0, 255, (3,), dtype=torch.uint8))
        self.register_buffer("nothing", torch.empty(0))
        self.register_buffer("spaced", torch.randn(6)[::2])
        self.register_buffer("turned_mask", (torch.rand(5, 7) < 0.5).t())
        self.turned_spectrum = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.complex64).t())
        self.tied = self.half


def values_of(model):
    return [value.clone() for _, value in sorted(model.state_dict().items())]


def test_broadcast_parameters_of_views_that_stand_for_other_values(hvd):
    """Conjugates and their imaginary parts, whose memory holds something else."""
    own = torch.randn(3, 2, dtype=torch.complex64, generator=torch.Generator().manual_seed(hvd.rank()))
    sent = {"conjugate": own.conj(), "negative": own.clone().conj().imag}
    expected = WORLD.bcast([tensor.clone() for tensor in sent.values()])
    hvd.broadcast_parameters(sent, 0)
    assert all(map(torch.equal, sent.values(), expected))


def test_lazy_layers_are_refused_by_name(hvd):
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 2), torch.nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match=r"'0\.bias', '0\.weight', '2.*: each belongs to a lazy layer that has seen no batch"):
        hvd.broadcast_parameters(lazy.state_dict(), 0)
    for named in (None, lazy.named_parameters()):
        with pytest.raises(ValueError, match=r"'0\.(weight|0)', .*: each belongs to a lazy layer that has seen no batch yet"):
            hvd.DistributedOptimizer(torch.optim.SGD(lazy.parameters(), lr=0.1), named)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(torch.nn.Linear(3, 2).parameters(), lr=0.1))
    with pytest.raises(
        ValueError, match=r"'added0\.0', 'added0\.1'.*: each belongs to a lazy layer that has seen no batch yet"
    ):
        optimizer.add_param_group({"params": list(lazy.parameters())})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("form", ["state_dict", "named", "list", "pairs", "generator"])
@pytest.mark.parametrize("root", [0, -1])
def test_broadcast_parameters(hvd, form, root):
    root = root % hvd.size()
    model = Everything(hvd.rank())
    expected = values_of(Everything(root))
    if form == "state_dict":
        state = model.state_dict()
        shuffled = sorted(state, key=lambda name: hash((name, hvd.rank())))  # in any order
        hvd.broadcast_parameters({name: state[name] for name in shuffled}, root_rank=root)
    elif form == "named":
        hvd.broadcast_parameters(model.named_parameters(), root)
        hvd.broadcast_parameters(model.named_buffers(), root)
    elif form == "list":
        hvd.broadcast_parameters([*model.parameters(), None, *model.buffers()], root)
    elif form == "pairs":
        hvd.broadcast_parameters(list(model.state_dict().items()), root)
    else:
        hvd.broadcast_parameters(model.parameters(), root)
        hvd.broadcast_parameters(model.buffers(), root)
    found = values_of(model)
    assert all(torch.equal(*both) for both in zip(found, expected, strict=True))
    assert model.turned.stride() == (1, 5)
    assert_same_bits(found)


def test_broadcast_parameters_in_a_process_set(hvd):
    members = [0, hvd.size() - 1]
    subset = hvd.add_process_set(members) if hvd.size() > 2 else hvd.global_process_set
    model = network(seed=hvd.rank())
    if hvd.rank() in members:
        hvd.broadcast_parameters(model.state_dict(), hvd.size() - 1, process_set=subset)
    expected = network(seed=hvd.size() - 1 if hvd.rank() in members else hvd.rank())
    assert all(torch.equal(*both) for both in zip(model.parameters(), expected.parameters(), strict=True))
    if subset is not hvd.global_process_set:
        hvd.remove_process_set(subset)


def test_broadcast_parameters_refuses_other_things(hvd):
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(3, 0)
    with pytest.raises(ValueError, match="takes tensors"):
        hvd.broadcast_parameters({"lr": 0.1}, 0)


def train(model, optimizer, steps, rank):
    for step in steps:

        def closure(step=step):
            optimizer.zero_grad()
            loss = mse(model, *whole_batch(10 * rank + step, 1))
            loss.backward()
            return loss

        optimizer.step(closure)


def lbfgs(params):
    return torch.optim.LBFGS(params, lr=0.1, max_iter=3, history_size=4)


def amsgrad_with_tensor_lr(params):
    return torch.optim.Adam(params, lr=torch.tensor(0.01), amsgrad=True)


MAKERS = [sgd, adam, lbfgs, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.ASGD, amsgrad_with_tensor_lr]


@pytest.mark.parametrize("make_optimizer", MAKERS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("who_has_state", ["root", "all", "others"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_broadcast_optimizer_state(hvd, make_optimizer, who_has_state, wrapped):
    root = hvd.size() - 1
    is_root = hvd.rank() == root
    model = network(seed=hvd.rank())
    optimizer = make_optimizer(model.parameters())
    if who_has_state == "all" or (who_has_state == "root") == is_root:
        train(model, optimizer, range(3), hvd.rank())
    if is_root and make_optimizer is not amsgrad_with_tensor_lr:
        optimizer.param_groups[0]["lr"] = 0.125
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer)
    weights = [param.detach().clone() for param in model.parameters()]
    gradients = [None if param.grad is None else param.grad.clone() for param in model.parameters()]
    before = copy.deepcopy(optimizer.state_dict())

    hvd.broadcast_optimizer_state(optimizer, root_rank=root)

    # Neither weights nor gradients have changed, and on the root nothing at all.
    assert all(torch.equal(*both) for both in zip(weights, model.parameters(), strict=True))
    for param, gradient in zip(model.parameters(), gradients, strict=True):
        assert (param.grad is None) == (gradient is None)
        assert gradient is None or torch.equal(param.grad, gradient)
    mine = optimizer.state_dict()
    if is_root:
        assert_equal(mine, before)
    assert_equal(mine, MPI.COMM_WORLD.bcast(mine, root))
    # And it works: the same gradients make the same step.
    hvd.broadcast_parameters(model.state_dict(), root)
    train(model, optimizer, range(2), 0)
    assert_same_bits(list(model.parameters()))


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_equal(*pair)
    else:
        assert one == other


def test_state_keeps_its_dtype(hvd):
    """load_state_dict would convert it to the parameter's."""
    param = torch.nn.Parameter(torch.randn(3).to(torch.bfloat16))
    optimizer = torch.optim.SGD([param], lr=0.1)
    optimizer.state[param]["master"] = torch.full((3,), 1 / 3 + hvd.rank())
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.state[param]["master"].dtype is torch.float32
    assert torch.equal(optimizer.state[param]["master"], torch.full((3,), 1 / 3))


def test_groups_must_be_alike(hvd):
    model = network()
    params = list(model.parameters())
    optimizer = sgd(params if hvd.rank() == 0 else [{"params": params[:2]}, {"params": params[2:]}])
    with pytest.raises(MismatchError, match=r"in each group is \[6\] on rank 0, but .* is \[2, 4\] on rank"):
        hvd.broadcast_optimizer_state(optimizer, 0)


def test_objects(hvd):
    got = hvd.broadcast_object({"epoch": hvd.rank(), "best": torch.full((2,), 3.0 * hvd.rank())}, root_rank=1)
    assert got["epoch"] == 1
    assert torch.equal(got["best"], torch.full((2,), 3.0))
    assert hvd.allgather_object(("rank", hvd.rank())) == [("rank", rank) for rank in range(hvd.size())]
