"""Equal runs give equal bits, whatever the timing: what is fused with what is fixed."""

import random
from itertools import chain

import pytest
import torch
from reference import assert_same_bits, mse, network, part_of, sgd, whole_batch
from support.limits import dawdle

RANKS = (3,)
MORE_RANKS = (4,)


def train(hvd, delays, dtype, **options):
    """The bits of the weights after some steps, with each parameter's hook delayed at random, differently on each rank."""
    model = network(dtype=dtype, hidden=24)
    if delays is not None:
        timing = random.Random(f"{delays} {hvd.rank()}")
        for param in model.parameters():
            param.register_post_accumulate_grad_hook(lambda _: dawdle(timing.choice((0, 0, 10, 100))))
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), **options)
    for step in range(6):
        optimizer.zero_grad()
        mse(model, *part_of(whole_batch(step, hvd.size(), dtype), hvd.rank())).backward()
        optimizer.step()
    weights = [param.detach().clone() for param in model.parameters()]
    assert_same_bits(weights)
    return weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("buckets", ["tiny", "default"])
def test_runs_repeat_bit_for_bit(hvd, dtype, buckets):
    from hvdlite.runtime import RUNTIME

    before = RUNTIME.config
    if buckets == "default":
        RUNTIME.config = before.replace(bucket_bytes=25 << 20, first_bucket_bytes=1 << 20)
    try:
        first = train(hvd, None, dtype)
        for delays in range(4):
            again = train(hvd, delays, dtype)
            assert all(torch.equal(*both) for both in zip(first, again, strict=True)), f"run {delays} differs"
    finally:
        RUNTIME.config = before


def test_runs_with_compression_repeat_bit_for_bit(hvd):
    first = train(hvd, None, torch.float32, compression=hvd.Compression.bf16)
    again = train(hvd, 1, torch.float32, compression=hvd.Compression.bf16)
    assert all(torch.equal(*both) for both in zip(first, again, strict=True))


def test_gradients_are_launched_while_backward_runs(hvd):
    """All buckets but the last one are on their way before the first layer's gradient is there."""
    from hvdlite.torch import in_flight

    model = network(hidden=24)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    log = []
    launch = in_flight.DenseBucket.launch

    def watched(self, *arguments):
        log.append([gradient.name.split(".", 1)[1] for gradient in self.gradients])
        return launch(self, *arguments)

    in_flight.DenseBucket.launch = watched
    try:
        for step in range(3):
            log.clear()
            model[0].weight.register_post_accumulate_grad_hook(lambda _: log.append("first layer"))
            mse(model, *part_of(whole_batch(step, hvd.size()), hvd.rank())).backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        in_flight.DenseBucket.launch = launch
    names = [entry for entry in log if entry != "first layer"]
    assert names[0] == ["4.bias"]
    assert list(chain.from_iterable(names)) == [name for name, _ in model.named_parameters()][::-1]
    assert log.index("first layer") >= len(names) - 1
