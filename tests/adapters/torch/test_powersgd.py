"""PowerSGD and error feedback of DistributedOptimizer: values, state, loss scales, and the interface that both implement.

Over 400 lines, because the two share their models and their reference.
"""

import copy
from collections import deque

import numpy as np
import pytest
import torch
from mpi4py import MPI
from reference import assert_same_bits
from support.codecs import KINDS, decoded, reduced

from hvdlite.compression import BucketCodec
from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SHAPES = ((40, 30), (24, 3, 5, 5), (7,), (2, 2))  # two that are approximated, and two that are sent whole


def values(rank, shape, salt):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1000 * salt + rank))


def parameters(shapes=SHAPES):
    return [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]


def sgd(hvd, params, compression, **options):
    return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1, momentum=0.9), compression=compression, **options)


def backward(params, salt, factor=1.0, rank=RANK):
    (factor * sum((param * values(rank, param.shape, salt + i)).sum() for i, param in enumerate(params))).backward()


def train(optimizer, params, steps, factor=1.0):
    for step in steps:
        optimizer.zero_grad()
        backward(params, 10 * step, factor)
        optimizer.step()


class Reference:
    """One matrix of all ranks, in float64 and as the paper has it."""

    def __init__(self, q):
        self.q = q.double()
        self.lost = [0.0] * SIZE

    def step(self, gradients):
        sums = [gradient.flatten(1).double() + lost for gradient, lost in zip(gradients, self.lost, strict=True)]
        p, _ = torch.linalg.qr(sum(sums) @ self.q)
        own = [each.t() @ p for each in sums]
        self.lost = [each - p @ q.t() for each, q in zip(sums, own, strict=True)]
        mean = sum(own) / SIZE
        self.q = mean
        return p @ mean.t()


def test_values_are_those_of_the_paper(hvd):
    params = parameters()
    optimizer = sgd(hvd, params, hvd.Compression.powersgd(rank=3, start_step=1))
    train(optimizer, params, [0])
    references = None
    for step in range(1, 5):
        optimizer.zero_grad()
        if step == 2:  # from here on the state is known
            codings = optimizer.state_dict()["hvdlite_compression"]["state"]
            references = [Reference(codings[i]["q"]) for i in range(2)]
            for i, reference in enumerate(references):
                lost = MPI.COMM_WORLD.allgather(codings[i]["residual"].numpy())
                reference.lost = [torch.from_numpy(each).double() for each in lost]
        backward(params, 10 * step)
        assert_same_bits([param.grad for param in params])
        for i, param in enumerate(params):
            everyone = [values(rank, param.shape, 10 * step + i) for rank in range(SIZE)]
            if i > 1:
                torch.testing.assert_close(param.grad, sum(everyone) / SIZE)
            elif references is not None:
                wanted = references[i].step(everyone).reshape(param.shape).float()
                torch.testing.assert_close(param.grad, wanted, rtol=1e-3, atol=1e-5)
                assert torch.linalg.matrix_rank(param.grad.flatten(1), rtol=1e-4) == 3
        optimizer.step()
    assert_same_bits([param.detach() for param in params])


def test_what_a_step_loses_comes_later(hvd):
    """Of a constant gradient, the sum of what is applied and the mean of the residuals is exact."""
    params = parameters()[:1]
    optimizer = sgd(hvd, params, hvd.Compression.powersgd(rank=1, start_step=0))
    applied = torch.zeros(SHAPES[0])
    for _ in range(30):
        optimizer.zero_grad()
        backward(params, 1)
        applied += params[0].grad
    mean = sum(values(rank, SHAPES[0], 1) for rank in range(SIZE)) / SIZE
    lost = torch.from_numpy(
        sum(MPI.COMM_WORLD.allgather(optimizer.state_dict()["hvdlite_compression"]["state"][0]["residual"].numpy())) / SIZE
    )
    torch.testing.assert_close(applied + lost, 30 * mean, rtol=1e-3, atol=1e-3)
    assert (applied / 30 - mean).norm() < 0.6 * mean.norm()


def test_fewer_bytes_are_sent(hvd):
    params = parameters([(256, 256)])
    optimizer = sgd(hvd, params, hvd.Compression.powersgd(rank=2, start_step=2))
    spent = []
    for step in range(3):  # the first one also compares the ranks' models
        before = hvd.stats()
        train(optimizer, params, [step])
        spent.append((hvd.stats() - before).bytes)
    assert spent[1] > 50 * spent[2] > 0


def test_a_value_that_is_not_finite_changes_no_state(hvd):
    params = parameters()
    optimizer = sgd(hvd, params, hvd.Compression.powersgd(start_step=0))
    train(optimizer, params, [0, 1])
    for place in range(3):  # in either matrix, and in what is sent whole
        before = copy.deepcopy(optimizer.state_dict()["hvdlite_compression"])
        optimizer.zero_grad()
        weights = [values(RANK, param.shape, i) for i, param in enumerate(params)]
        if RANK == SIZE - 1:
            weights[place].view(-1)[3] = float("inf") if place else float("nan")
        sum((param * weight).sum() for param, weight in zip(params, weights, strict=True)).backward()
        assert [bool(param.grad.isfinite().all()) for param in params] == [i != place for i in range(4)]
        assert_same_state(optimizer.state_dict()["hvdlite_compression"], before)
    optimizer.zero_grad()


def assert_same_state(one, other):
    assert one["state"].keys() == other["state"].keys()
    for number, kept in one["state"].items():
        for key, value in kept.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other["state"][number][key])), (number, key)


@pytest.mark.parametrize("shard", [False, True], ids=["whole", "shard"])
def test_a_loaded_state_goes_on_exactly(hvd, shard):
    params, others = parameters(), parameters()
    compression = hvd.Compression.powersgd(start_step=1)
    optimizer = sgd(hvd, params, compression, shard=shard)
    train(optimizer, params, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    for param, other in zip(params, others, strict=True):
        other.data.copy_(param)
    twin = sgd(hvd, others, compression, shard=shard)
    twin.load_state_dict(saved)
    for trained, on in ((optimizer, params), (twin, others)):
        train(trained, on, range(3, 6))
    assert all(map(torch.equal, params, others))
    torch.optim.SGD(parameters(), lr=0.1).load_state_dict(saved)  # which ignores it
    other = sgd(hvd, parameters(), hvd.Compression.powersgd(rank=3))
    with pytest.raises(InvalidArgumentError, match="state of an optimizer with compression powersgd of rank 2"):
        other.load_state_dict(saved)
    assert not other.state
    for loads in (False, True):  # also of a rank that has just loaded its state
        if loads and RANK == 0:
            optimizer.load_state_dict(saved)
        hvd.broadcast_optimizer_state(optimizer, 0)
        kept = optimizer.state_dict()["hvdlite_compression"]["state"][0]
        assert ("residual" in kept) == (RANK == 0)  # it was rank 0's own
        assert len(set(MPI.COMM_WORLD.allgather(kept["q"].numpy().tobytes()))) == 1


@pytest.mark.parametrize("compression", ["powersgd", "int4"])
def test_loss_scales_change_nothing(hvd, compression):
    """Scales are powers of two, so all bits are the same."""
    made = hvd.Compression.powersgd(start_step=0) if compression == "powersgd" else hvd.Compression.int4(64, "ranks", True)
    results = []
    for scales in ([1.0] * 4, [256.0, 2.0, 1024.0, 64.0]):
        params = parameters()
        optimizer = sgd(hvd, params, made)
        for step, scale in enumerate(scales):
            optimizer.loss_scale = scale
            optimizer.zero_grad()
            backward(params, 10 * step, scale)
            for param in params:
                param.grad /= scale
            optimizer.step()
        results.append([param.detach().clone() for param in params])
    assert all(map(torch.equal, *results))


def test_a_grad_scaler(hvd):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, growth_interval=2)
    params = parameters()
    optimizer = sgd(hvd, params, hvd.Compression.powersgd(start_step=0))
    scaler.scale(sum((param * values(RANK, param.shape, 0)).sum() for param in params) * 1e-10).backward()
    with pytest.raises(UnsupportedError, match=r"GradScaler scales the loss.*set optimizer.loss_scale = scaler"):
        scaler.step(optimizer)
    scaler.update()
    torch.amp.GradScaler("cpu", enabled=False).step(optimizer)  # it scales nothing
    optimizer.zero_grad()
    optimizer.loss_scale = scaler
    assert optimizer.loss_scale is scaler
    for step in range(4):
        optimizer.zero_grad()
        factor = 1e20 if step == 1 else 1e-10  # one step has infs
        scaler.scale(sum((param * values(RANK, param.shape, step)).sum() for param in params) * factor).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert_same_bits([param.detach() for param in params])
    assert optimizer.state_dict()["hvdlite_compression"]["state"][0]["step"] == 4  # and one before the loop
    for wrong in (0, -1.5, float("nan"), float("inf"), 10**400, "2"):
        with pytest.raises(InvalidArgumentError, match=f"loss_scale={wrong!r}"):
            optimizer.loss_scale = wrong


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
def test_error_feedback_keeps_what_coding_has_lost(hvd, kind):
    params = parameters([(300,), (5, 7)])
    optimizer = sgd(hvd, params, getattr(hvd.Compression, kind)(64, "ranks", error_feedback=True))
    lost = [[np.zeros(param.numel(), np.float32) for param in params] for _ in range(SIZE)]
    for step in range(3):
        optimizer.zero_grad()
        backward(params, 10 * step)
        for i, param in enumerate(params):
            sums = [values(rank, param.shape, 10 * step + i).numpy().ravel() + lost[rank][i] for rank in range(SIZE)]
            wanted = reduced(sums, KINDS[kind], block=64, divisor=SIZE)
            assert np.array_equal(param.grad.numpy().ravel(), wanted)
            for rank, total in enumerate(sums):
                lost[rank][i] = total - decoded(total, KINDS[kind], 64)
        optimizer.step()
    kept = optimizer.state_dict()["hvdlite_compression"]["state"]
    for i, each in kept.items():
        assert np.array_equal(each["residual"].numpy().ravel(), lost[RANK][i])


def test_error_feedback_forgets_a_step_that_is_not_finite(hvd):
    params = parameters([(300,), (5, 7)])
    optimizer = sgd(hvd, params, hvd.Compression.int8(64, "ranks", error_feedback=True))
    train(optimizer, params, range(2))
    before = copy.deepcopy(optimizer.state_dict()["hvdlite_compression"])
    optimizer.zero_grad()
    backward(params, 20, float("inf") if RANK == SIZE - 1 else 1.0)
    assert not any(bool(param.grad.isfinite().any()) for param in params)
    assert_same_state(optimizer.state_dict()["hvdlite_compression"], before)
    optimizer.zero_grad()


class Halves(BucketCodec):
    """Sends the first half of each gradient in one round and the second in another, and counts."""

    def reduce(self, gradients, loss_scale):
        wholes = [gradient.whole().reshape(-1) for gradient in gradients]
        for part in (slice(None, None, 2), slice(1, None, 2)):
            sent = [whole[part].contiguous() for whole in wholes]
            yield sent
            for whole, each in zip(wholes, sent, strict=True):
                whole[part] = each
        for gradient in gradients:
            if gradient.present:
                gradient.state["count"] = gradient.state.get("count", 0) + 1
        return wholes


def test_a_codec_of_the_users(hvd):
    """Also with parameters that some ranks or all do not use, and with buckets that fill in another order on each rank."""
    params = parameters([(40, 30), (30, 40), (50, 20), (9,)])
    optimizer = sgd(hvd, params, Halves())
    for step in range(3):
        optimizer.zero_grad()
        used = [i for i in range(3) if i != RANK or i == 2]
        terms = [(params[i] * values(RANK, params[i].shape, 10 * step + i)).sum() for i in (used if RANK else used[::-1])]
        sum(terms).backward()
        for i, param in enumerate(params[:3]):
            ranks = [rank for rank in range(SIZE) if i != rank or i == 2]
            torch.testing.assert_close(param.grad, sum(values(rank, param.shape, 10 * step + i) for rank in ranks) / SIZE)
        assert params[3].grad is None
        optimizer.step()
    kept = optimizer.state_dict()["hvdlite_compression"]["state"]
    assert {number: each["count"] for number, each in kept.items()} == {0: 3, 1: 3, 2: 3}


def test_changed_parameter_sets(hvd):
    """Frozen and added parameters, one that only some ranks use, and another dtype."""
    params = parameters([(40, 30), (30, 40)])
    optimizer = sgd(hvd, params, hvd.Compression.powersgd(start_step=1))
    train(optimizer, params, range(3))
    params[0].requires_grad_(False)
    train(optimizer, params[1:], range(3, 5))
    params.append(torch.nn.Parameter(torch.zeros(20, 50)))
    optimizer.add_param_group({"params": params[2:]})
    params[0].requires_grad_(True)
    train(optimizer, params, range(5, 7))
    train(optimizer, params[: 2 + RANK % 2], range(7, 9))
    assert_same_bits([param.detach() for param in params])
    kept = optimizer.state_dict()["hvdlite_compression"]["state"]
    assert [kept[i]["step"] for i in range(3)] == [7, 9, 4]
    for dtype in (torch.float64, torch.float32):
        torch.nn.ParameterList(params).to(dtype)
        backward(params, 9)
        kept = optimizer.state_dict()["hvdlite_compression"]["state"][0]
        assert kept["q"].dtype is kept["residual"].dtype is dtype


def test_ranks_that_have_joined_get_what_they_have_missed(hvd):
    params = parameters([(40, 30), (7,)])
    optimizer = sgd(hvd, params, hvd.Compression.powersgd(start_step=3))
    train(optimizer, params, range(2 if RANK == 0 else 5))
    assert hvd.join() > 0
    train(optimizer, params, range(5, 8))  # without the counts of the others, rank 0 would send whole gradients
    assert_same_bits([param.grad for param in params])
    kept = optimizer.state_dict()["hvdlite_compression"]["state"]
    assert [kept[i]["step"] for i in range(2)] == [8, 8]
    assert_same_bits([kept[0]["q"]])


def test_two_optimizers_end_in_another_order_on_each_rank(hvd):
    """In one backward: their second rounds start when they are waited for, and could wait for each other."""
    weights = parameters([(30, 30), (30, 30)])
    optimizers = [
        sgd(hvd, [weight], hvd.Compression.powersgd(start_step=0), named_parameters=[(f"w{place}", weight)])
        for place, weight in enumerate(weights)
    ]
    for step in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        first, second = weights if step < 2 or RANK == 0 else weights[::-1]  # what begins is compared in one order
        (values(RANK, (4, 30), step) @ (first + 1) @ (second + 1)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_same_bits([weight.detach() for weight in weights])


class _Interrupted(deque):
    """A reducer's launched buckets, into which Ctrl-C comes once, between a launch and its first round."""

    def append(self, launched):
        super().append(launched)
        if len(self) == 1:
            raise KeyboardInterrupt


def test_ctrl_c_before_the_first_round(hvd):
    """In the second step: handles of the first step's rounds are still there."""
    params = parameters([(40, 30)])
    optimizer = sgd(hvd, params, hvd.Compression.int8(64, "ranks", error_feedback=True))
    train(optimizer, params, [0])
    optimizer.zero_grad()
    if RANK == 0:
        optimizer._hvdlite.reducer.in_flight = _Interrupted()
        with pytest.raises(KeyboardInterrupt):
            backward(params, 10)
        optimizer._hvdlite.reducer.settle()
    else:
        backward(params, 10)
    assert_same_bits([params[0].grad])
    mean = sum(values(rank, (40, 30), 10) for rank in range(SIZE)) / SIZE
    torch.testing.assert_close(params[0].grad, mean, rtol=0.0, atol=0.1)
    optimizer.step()
    train(optimizer, params, [2])
    assert_same_bits([param.detach() for param in params])


def test_accumulation_and_weights(hvd):
    """Passes are added up here and reduced once; gradients of low rank lose nothing."""
    params = parameters([(40, 30)])
    optimizer = sgd(hvd, params, hvd.Compression.powersgd(start_step=0), backward_passes_per_step=2)
    optimizer.weight = 1.0 + RANK
    left, right = values(0, (40, 1), 1), values(0, (1, 30), 2)
    for step in range(3):
        optimizer.zero_grad()
        for _ in range(2):
            ((step + RANK) * (params[0] * (left @ right)).sum()).backward()
    weights = [2.0 * (1 + rank) for rank in range(SIZE)]
    factor = sum(weight * 2 * (2 + rank) for rank, weight in enumerate(weights)) / sum(weights)
    torch.testing.assert_close(params[0].grad, factor * left @ right, rtol=1e-4, atol=1e-4)


def test_refusals(hvd):
    powersgd = hvd.Compression.powersgd()
    params = parameters()
    for call in (
        lambda: hvd.allreduce(torch.ones(3), compression=powersgd),
        lambda: hvd.grouped_allreduce([np.ones(3)], compression=hvd.Compression.int8(error_feedback=True)),
        lambda: hvd.reducescatter(torch.ones(SIZE), compression=powersgd),
        lambda: sgd(hvd, params, powersgd, op=hvd.Adasum),
    ):
        with pytest.raises(UnsupportedError, match=r"powersgd of rank 2|with error feedback|Adasum with non-power of 2 ranks"):
            call()
    with pytest.raises(UnsupportedError, match='between="hosts" the engine codes the sum of the ranks of a host'):
        sgd(hvd, params, hvd.Compression.int8(error_feedback=True))
    with pytest.raises(InvalidArgumentError, match=r"powersgd.* reduces all gradients in one bucket"):
        sgd(hvd, params, powersgd, groups=2)
    for wrong in ({"rank": 0}, {"start_step": -1}, {"min_compression": 0.5}, {"rank": 2.0}):
        with pytest.raises(InvalidArgumentError, match=f"powersgd: {next(iter(wrong))}="):
            hvd.Compression.powersgd(**wrong)
    with pytest.raises(UnsupportedError, match="sharded_state_dict cannot save the state"):
        sgd(hvd, params, powersgd, shard=True).sharded_state_dict()
    table = torch.nn.Embedding(40, 30, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.1), compression=powersgd)
    with pytest.raises(UnsupportedError, match=r"sparse gradient of .* \(without sparse_as_dense=True\)"):
        table(torch.tensor([1])).sum().backward()
    del optimizer
    wrong = sgd(hvd, params, hvd.Compression.powersgd(rank=2 + RANK % 2))
    if SIZE > 1:
        with pytest.raises(MismatchError, match="powersgd of rank 3"):
            backward(params, 1)
    del wrong
