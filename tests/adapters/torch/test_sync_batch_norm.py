"""SyncBatchNorm on the ranks' parts beside torch's BatchNorm on the whole batch."""

import copy
import functools
import pickle

import pytest
import reference
import torch
from mpi4py import MPI
from reference import Pair, assert_close, assert_same_bits, mse, sgd
from support.seeds import seeds

from hvdlite.runtime import RUNTIME

WORLD = MPI.COMM_WORLD
CHANNELS = 5


def rows_of_ranks(size, kind):
    """How many rows of the batch each rank has."""
    return {
        "even": [4] * size,
        "uneven": [1 + 3 * rank for rank in range(size)],
        "one empty": [0, *[3 + rank for rank in range(1, size)]],
        "one row": [1] * size,
    }[kind]


class Case:
    """A layer on all ranks' parts (`norm`), and torch's on the whole batch, in float64 where nothing else is said."""

    def __init__(self, hvd, rows, space=(), dtype=torch.float64, memory_format=None, process_set=None, **options):
        self.hvd, self.rows, self.space = hvd, rows, space
        self.dtype, self.memory_format = dtype, memory_format
        self.ranks = process_set.ranks if process_set else list(range(hvd.size()))
        sets = {"process_set": process_set} if process_set else {}
        parameters = torch.float64 if dtype is torch.float64 else torch.float32
        self.norm = hvd.SyncBatchNorm(CHANNELS, **options, **sets).to(reference.DEVICE, parameters)
        kind = {0: torch.nn.BatchNorm1d, 1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}[len(space)]
        self.twin = kind(CHANNELS, **options).to(reference.DEVICE, torch.float64)
        if self.norm.affine:
            with torch.no_grad():
                for layer in (self.norm, self.twin):
                    layer.weight.copy_(torch.linspace(0.5, 2.0, CHANNELS))
                    layer.bias.copy_(torch.linspace(-1.0, 1.0, CHANNELS))

    def step(self, seed, tolerance):
        """One forward and backward in training, compared in all there is."""
        generator = torch.Generator().manual_seed(seed)
        shape = (sum(self.rows), CHANNELS, *self.space)
        whole = (torch.randn(shape, generator=generator, dtype=torch.float64) * 3 + 2).to(reference.DEVICE, self.dtype)
        pull = torch.randn(shape, generator=generator, dtype=torch.float64).to(reference.DEVICE, self.dtype)
        place = self.ranks.index(self.hvd.rank())
        mine = slice(sum(self.rows[:place]), sum(self.rows[: place + 1]))

        part = whole[mine].clone()
        if self.memory_format is not None:
            part = part.contiguous(memory_format=self.memory_format)
        part.requires_grad_()
        output = self.norm(part)
        assert output.dtype is self.dtype
        assert output.stride() == part.stride()
        (output * pull[mine]).sum().backward()

        wide = whole.double().requires_grad_()
        expected = self.twin(wide)
        (expected * pull.double()).sum().backward()
        assert_close([output.double(), part.grad.double()], [expected[mine], wide.grad[mine]], tolerance)
        if self.norm.affine and len(self.ranks) == WORLD.size:
            for name in ("weight", "bias"):
                parts = WORLD.allgather(getattr(self.norm, name).grad.double().cpu())
                assert_close([sum(parts).to(reference.DEVICE)], [getattr(self.twin, name).grad], 10 * tolerance)
        self.norm.zero_grad()
        self.twin.zero_grad()
        self.check_buffers(tolerance)

    def check_buffers(self, tolerance):
        mine, others = dict(self.norm.named_buffers()), dict(self.twin.named_buffers())
        assert mine.keys() == others.keys()
        assert_close([mine[name].double() for name in mine], [others[name].double() for name in mine], tolerance)


ROWS = ["even", "uneven", "one empty", "one row"]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("space", [(), (7,), (4, 3), (2, 3, 2)], ids=["0d", "1d", "2d", "3d"])
def test_like_the_whole_batch(hvd, rows, space):
    case = Case(hvd, rows_of_ranks(hvd.size(), rows), space)
    for seed in seeds(range(3)):
        case.step(seed, 1e-12)


@pytest.mark.parametrize(
    "options",
    [{"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"momentum": 0.7, "eps": 0.1}],
    ids=["cumulative", "not affine", "not tracked", "other numbers"],
)
def test_options(hvd, options):
    case = Case(hvd, rows_of_ranks(hvd.size(), "uneven"), (3, 2), **options)
    for seed in seeds(range(3)):
        case.step(seed, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", ["uneven", "one empty"])
def test_narrow_dtypes(hvd, dtype, rows):
    """Statistics are float32 whatever the input is; only the output is rounded to its dtype."""
    case = Case(hvd, rows_of_ranks(hvd.size(), rows), (4, 3), dtype)
    for seed in seeds(range(3)):
        case.step(seed, {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype])
    assert_close([case.norm.running_var.double()], [case.twin.running_var], 1e-6)


def test_all_in_half_precision(hvd):
    norm = hvd.SyncBatchNorm(CHANNELS).to(torch.bfloat16)
    part = torch.randn(3 + hvd.rank(), CHANNELS, dtype=torch.bfloat16, requires_grad=True)
    norm(part).square().sum().backward()
    assert norm.weight.grad.dtype is norm.bias.grad.dtype is part.grad.dtype is torch.bfloat16
    assert norm.running_mean.dtype is torch.bfloat16


def test_channels_last(hvd):
    rows = rows_of_ranks(hvd.size(), "uneven")
    for space, memory_format in [((4, 3), torch.channels_last), ((2, 3, 4), torch.channels_last_3d)]:
        Case(hvd, rows, space, memory_format=memory_format).step(0, 1e-12)


def test_a_mean_far_from_zero(hvd):
    """float32 squares of these values have no digit of the variance left."""
    generator = torch.Generator().manual_seed(hvd.rank())
    part = torch.randn(50 + hvd.rank(), CHANNELS, 8, generator=generator) + 4096.0
    norm = hvd.SyncBatchNorm(CHANNELS, momentum=1.0)
    output = norm(part)
    everyone = torch.cat(WORLD.allgather(part)).double()
    mean, var = everyone.mean((0, 2)), everyone.var((0, 2))
    assert_close([norm.running_mean.double(), norm.running_var.double()], [mean, var], 1e-6)
    biased = everyone.var((0, 2), correction=0)
    expected = (part.double() - mean[:, None]) / (biased[:, None] + norm.eps).sqrt()
    assert (output.double() - expected).abs().max() < 1e-3  # mean and input are float32 numbers near 4096
    assert_same_bits([norm.running_mean, norm.running_var])


@pytest.mark.parametrize("track", [True, False])
def test_evaluation(hvd, track):
    """Running statistics need nobody else; without them the ranks' batches are one, in evaluation too."""
    case = Case(hvd, rows_of_ranks(hvd.size(), "uneven"), (3,), track_running_stats=track)
    case.step(0, 1e-12)
    case.norm.eval()
    case.twin.eval()
    if not track:
        case.step(1, 1e-12)
        return
    before = counters()
    part = torch.randn(2, CHANNELS, 3, dtype=torch.float64)
    assert_close([case.norm(part)], [case.twin(part)], 1e-12)
    assert counters()["submitted"] == before["submitted"]
    case.check_buffers(1e-12)


def counters():
    return RUNTIME.require().counters()


def test_one_exchange_forward_and_one_backward(hvd):
    norm = hvd.SyncBatchNorm(CHANNELS)
    for _ in range(3):
        before = counters()
        output = norm(torch.randn(4, CHANNELS, 3, requires_grad=True))
        between = counters()
        output.sum().backward()
        after = counters()
        assert between["submitted"] - before["submitted"] == 1
        assert after["submitted"] - between["submitted"] == 1
    # An input that wants no gradient (the first layer's) needs none from the others.
    output = norm(torch.randn(4, CHANNELS, 3))
    between = counters()
    output.sum().backward(retain_graph=True)
    pull = torch.ones_like(output, requires_grad=True)
    (slope,) = torch.autograd.grad((output * pull).sum(), norm.weight, create_graph=True)
    slope.square().sum().backward()
    assert_close([pull.grad], [2 * slope[:, None] * output], 1e-5)
    assert counters()["submitted"] == between["submitted"]
    # Known requests: the names are the same in every step.
    assert counters()["cache_misses"] == after["cache_misses"]


def test_everything_is_empty(hvd):
    norm = hvd.SyncBatchNorm(CHANNELS)
    part = torch.randn(0, CHANNELS, 3, requires_grad=True)
    output = norm(part)
    output.sum().backward()
    assert output.shape == part.grad.shape == (0, CHANNELS, 3)
    assert torch.equal(norm.running_mean, torch.zeros(CHANNELS))
    assert torch.equal(norm.weight.grad, torch.zeros(CHANNELS))


def test_wrong_inputs(hvd):
    norm = hvd.SyncBatchNorm(CHANNELS)
    with pytest.raises(ValueError, match=r"expected at least 2D input \(got 1D input\)"):
        norm(torch.randn(CHANNELS))
    with pytest.raises(ValueError, match=r"for 5 channels got an input of shape \[3, 4\]"):
        norm(torch.randn(3, 4))
    with pytest.raises(ValueError, match=r"floating dtypes, not torch\.int64"):
        norm(torch.ones(3, CHANNELS, dtype=torch.int64))
    alone = torch.randn(1 if hvd.rank() == 1 else 0, CHANNELS)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(alone)
    assert torch.equal(norm.num_batches_tracked, torch.tensor(0))


def test_in_a_process_set(hvd):
    members = [0, hvd.size() - 1]
    subset = hvd.add_process_set(members) if hvd.size() > 2 else hvd.global_process_set
    if hvd.rank() in members:
        case = Case(hvd, [2, 5], (3,), process_set=subset)
        for seed in seeds(range(2)):
            case.step(seed, 1e-12)
        copied = pickle.loads(pickle.dumps(copy.deepcopy(case.norm)))
        assert copied.process_set is subset
    else:
        with pytest.raises(ValueError, match="is not a member"):
            hvd.SyncBatchNorm(CHANNELS, process_set=subset)(torch.randn(3, CHANNELS))
    if subset is not hvd.global_process_set:
        hvd.remove_process_set(subset)


def test_ranks_that_have_joined_do_not_count(hvd):
    if hvd.rank() == 0:
        hvd.join()
        return
    Case(hvd, [0, *[2 + rank for rank in range(1, hvd.size())]], (3,), affine=False).step(0, 1e-12)
    hvd.join()


class Network(torch.nn.Module):
    """Layers of many kinds with normalisation between them; one of these is used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        shared = torch.nn.BatchNorm1d(8)
        self.first = torch.nn.Sequential(torch.nn.Linear(6, 8), shared)
        self.second = torch.nn.ModuleDict({"linear": torch.nn.Linear(8, 8), "norm": shared})
        self.third = torch.nn.BatchNorm1d(8, affine=False, momentum=None)
        self.last = torch.nn.Linear(8, 3)
        self.to(reference.DEVICE, torch.float64)

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        hidden = torch.tanh(self.second["norm"](self.second["linear"](hidden)))
        return self.last(self.third(hidden))


@pytest.mark.parametrize("how", ["plain", "compiled"])
def test_a_converted_network_trains_like_one_process(hvd, how):
    pair = Pair(hvd, sgd, Network, 1e-10)
    names = list(pair.model.state_dict())
    weights = list(pair.model.parameters())
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(pair.model) is pair.model
    assert list(pair.model.state_dict()) == names
    assert all(one is other for one, other in zip(weights, pair.model.parameters(), strict=True))
    assert pair.model.first[1] is pair.model.second["norm"]
    assert not any(isinstance(layer, torch.nn.BatchNorm1d) for layer in pair.model.modules())
    model = torch.compile(pair.model, backend="aot_eager") if how == "compiled" else pair.model
    for step in range(6):
        part, whole = pair.parts(step)
        pair.zero()
        mse(model, *part).backward()
        mse(pair.twin, *whole).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()
    assert_close([b.double() for b in pair.model.buffers()], [b.double() for b in pair.twin.buffers()], 1e-10)


@pytest.mark.parametrize("layers", ["inside", "last", "twice", "plain"])
def test_a_gradient_penalty(hvd, layers):
    """As one process has it: the gradients are differentiated again, through the statistics of all ranks."""
    torch.manual_seed(5)
    norm = functools.partial(torch.nn.BatchNorm1d, 3, dtype=torch.float64, affine=layers != "plain")
    first, tanh, end = torch.nn.Linear(4, 3, dtype=torch.float64), torch.nn.Tanh(), torch.nn.Linear(3, 1, dtype=torch.float64)
    twin = torch.nn.Sequential(first, norm(), *{"last": [], "twice": [tanh, norm(), tanh, end]}.get(layers, [tanh, end]))
    critic = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(twin))
    batches = [torch.randn(3 + rank, 4, dtype=torch.float64) for rank in range(hvd.size())]

    def penalty(model, inputs):
        inputs = inputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).pow(3).sum(), inputs, create_graph=True)
        return (slope.norm(dim=1) - 1).square().sum()

    penalty(critic, batches[hvd.rank()]).backward()
    penalty(twin, torch.cat(batches)).backward()
    for param, expected in zip(critic.parameters(), twin.parameters(), strict=True):
        mine = torch.zeros_like(param) if param.grad is None else param.grad
        wanted = torch.zeros_like(expected) if expected.grad is None else expected.grad
        assert_close([hvd.allreduce(mine, op=hvd.Sum, name="penalty")], [wanted], 1e-9)


def test_conversion_of_a_layer(hvd):
    layer = torch.nn.BatchNorm2d(3, eps=0.5, momentum=None, affine=False).eval()
    made = hvd.SyncBatchNorm.convert_sync_batchnorm(layer)
    assert isinstance(made, hvd.SyncBatchNorm)
    assert (made.eps, made.momentum, made.affine, made.training) == (0.5, None, False, False)
    assert made.running_mean is layer.running_mean
    assert made.process_set is copy.deepcopy(made).process_set is hvd.global_process_set
    assert pickle.loads(pickle.dumps(made)).process_set is hvd.global_process_set
    lazy = torch.nn.Sequential(torch.nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match="does not know its channels yet"):
        hvd.SyncBatchNorm.convert_sync_batchnorm(lazy)
    lazy(torch.randn(2, 7))
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(lazy)[0].num_features == 7
    linear = torch.nn.Linear(2, 2)
    assert hvd.SyncBatchNorm.convert_sync_batchnorm(linear) is linear
