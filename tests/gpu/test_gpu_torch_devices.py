"""Models of which a part is in host memory, and gradients made in several streams."""

from contextlib import nullcontext

import pytest
import torch
from support import fake_torch
from support.world import WORLD
from torch_reference import DEVICE

from hvdlite.requests import Flag

from reference import Pair, assert_close, assert_same_bits, grads_of, mse, network, sgd  # isort: skip
from kinds import GPU, WHERE

MORE_RANKS = (3,)  # one rank has nobody to average with
STAND_INS = ("fakes",)
STEPS = 4
SIZE = WORLD.size


class Spread(torch.nn.Module):
    """One layer on the GPU between two in host memory."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.third = torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)
        self.double()
        self.second.to(DEVICE)
        if WHERE == "fakes":
            for param in (*self.first.parameters(), *self.third.parameters()):
                param.fake_place = -1

    def forward(self, inputs):
        middle = self.second(self.first(inputs.cpu()).tanh().to(DEVICE)).tanh()
        return self.third(middle.cpu()).to(DEVICE)


def test_elements_that_cannot_be_reduced_are_moved(hvd):
    def value(rank):
        return torch.arange(6 * SIZE, dtype=torch.uint8).add(rank).view(torch.float8_e5m2).view(2 * SIZE, 3).to(DEVICE)

    def check(found, expected):
        assert (found.dtype, found.device) == (expected.dtype, expected.device)
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))

    everyone = [value(rank) for rank in range(SIZE)]
    for root in range(SIZE):
        check(hvd.broadcast(value(WORLD.rank), root, "new"), everyone[root])
        check(hvd.broadcast_(value(WORLD.rank), root, "in place"), everyone[root])
    check(hvd.allgather(value(WORLD.rank), "rows"), torch.cat(everyone))
    check(hvd.alltoall(value(WORLD.rank)), torch.cat([rows[2 * WORLD.rank : 2 * WORLD.rank + 2] for rows in everyone]))


@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}, {"groups": 2}], ids=["plain", "passes", "groups"])
def test_a_model_of_which_a_part_is_in_host_memory(hvd, options, taken):
    """Both parts are reduced, each where it is, and no bucket has members of both."""
    pair = Pair(hvd, sgd, Spread, **options)
    passes = options.get("backward_passes_per_step", 1)
    with taken(other_too=True):
        for step in range(STEPS):
            pair.zero()
            for _ in range(passes):
                part, whole = pair.parts(step)
                mse(pair.model, *part).backward()
                mse(pair.twin, *whole).backward()
            assert_close([grad.cpu() for grad in grads_of(pair.model)], [grad.cpu() for grad in grads_of(pair.twin)], 1e-10)
            pair.step()
    buckets = pair.optimizer._hvdlite.reducer.buckets
    devices = [{form.device for _, form in bucket.members} for bucket in buckets]
    assert all(len(each) == 1 for each in devices)
    assert set.union(*devices) == {-1, GPU}
    assert_same_bits([param.cpu() for param in pair.model.parameters()])


def move(pair, to_gpu):
    """Moves both models, and what their optimizers keep."""
    device = DEVICE if to_gpu else "cpu"
    for module, optimizer in ((pair.model, pair.optimizer), (pair.twin, pair.twin_optimizer)):
        module.to(device)
        for state in optimizer.state.values():
            state.update({name: value.to(device) for name, value in state.items() if torch.is_tensor(value)})
    for param in pair.model.parameters() if WHERE == "fakes" else ():
        param.fake_place = GPU if to_gpu else -1


@pytest.mark.parametrize("options", [{}, {"backward_passes_per_step": 2}], ids=["plain", "passes"])
def test_a_model_that_is_moved_after_its_first_steps(hvd, options, taken):
    """The plan is made anew: gradients are reduced where they are now."""
    pair = Pair(hvd, sgd, **options)
    passes = options.get("backward_passes_per_step", 1)
    for to_gpu in (False, True, False):
        move(pair, to_gpu)
        with taken() if to_gpu else nullcontext():
            for step in range(2):
                pair.zero()
                for _ in range(passes):
                    part, whole = ([tensor.to(DEVICE if to_gpu else "cpu") for tensor in one] for one in pair.parts(step))
                    mse(pair.model, *part).backward()
                    mse(pair.twin, *whole).backward()
                assert_close(grads_of(pair.model), grads_of(pair.twin), 1e-10)
                pair.step()
        reducer = pair.optimizer._hvdlite.reducer
        assert {bucket.device for bucket in reducer.buckets} == {GPU if to_gpu else -1}
    assert_same_bits(list(pair.model.parameters()))


def test_gradients_that_are_made_in_several_streams(hvd, taken):
    """The stream that launches a bucket is put after the others in which its gradients are made."""
    if WHERE != "fakes":
        pytest.skip("autograd's streams follow those of the forward pass; see test_gpu_torch_streams")
    pair = Pair(hvd, sgd)
    streams = [fake_torch.Stream(GPU) for _ in range(3)]
    mine = fake_torch._current(GPU)
    hooks = [
        param.register_hook(lambda _, stream=streams[place % 3]: fake_torch.use(stream, GPU))
        for place, param in enumerate(pair.model.parameters())
    ]
    fake_torch.followed.clear()
    with taken():
        for step in range(STEPS):
            pair.zero()
            part, whole = pair.parts(step)
            mse(pair.model, *part).backward()
            fake_torch.use(mine, GPU)
            mse(pair.twin, *whole).backward()
            assert_close(grads_of(pair.model), grads_of(pair.twin), 1e-10)
            pair.step()
    for hook in hooks:
        hook.remove()
    addresses = {stream.address for stream in streams}
    assert fake_torch.followed
    assert {stream for pair in fake_torch.followed for stream in pair} <= addresses


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_the_engine_compresses_gradients_on_a_gpu(hvd, name, taken):
    """They are reduced where they are, without a copy by torch, and narrow on their way."""
    pair = Pair(hvd, sgd, lambda: network(dtype=torch.float32), 1e-2, compression=getattr(hvd.Compression, name))
    with taken():
        pair.zero()
        part, whole = pair.parts(0, torch.float32)
        mse(pair.model, *part).backward()
        mse(pair.twin, *whole).backward()
    found, exact = grads_of(pair.model), grads_of(pair.twin)
    assert_close(found, exact, 1e-2)
    assert any((one - other).abs().max() > 1e-5 for one, other in zip(found, exact, strict=True)), "nothing was narrowed"
    assert_same_bits(found)
    forms = [form for bucket in pair.optimizer._hvdlite.reducer.buckets for _, form in bucket.members]
    flag = {"fp16": Flag.WIRE_FLOAT16, "bf16": Flag.WIRE_BFLOAT16}[name]
    assert all(form.flags == flag and form.dtype_in_place is not None for form in forms)
