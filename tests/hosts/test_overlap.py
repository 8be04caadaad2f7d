"""DistributedOptimizer hides its communication between hosts behind backward."""

import pytest
from support.hosts import emulated_hosts
from support.rest import ENVIRONMENT

LAYERS = 16
PROGRAM = f"""
    import torch
    import hvdlite.torch as hvd
    from hvdlite.runtime import RUNTIME
    from support.limits import eventually

    LAYERS, COUNT = {LAYERS}, 1 << 18

    class Held(torch.autograd.Function):
        # Scales by one. Its backward goes on when the gradients that were made before it have been reduced: all of them but
        # one, which may wait for the other of its bucket.
        @staticmethod
        def forward(ctx, x, weight, layer):
            ctx.layer = layer
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            made = LAYERS - 1 - ctx.layer
            assert eventually(lambda: reduced() >= made - 1), (ctx.layer, reduced())
            return grad, torch.full([COUNT], hvd.rank() + ctx.layer + 1.0), None

    def reduced():
        return RUNTIME.engine.counters()["completed"] - before

    hvd.init()
    weights = [torch.nn.Parameter(torch.zeros(COUNT)) for _ in range(LAYERS)]
    named = [(f"layer{{number}}", weight) for number, weight in enumerate(weights)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(weights, lr=1.0), named_parameters=named)
    for step in range(4):
        x = torch.ones(1, requires_grad=True)
        for layer, weight in enumerate(weights):
            x = Held.apply(x, weight, layer)
        before = RUNTIME.engine.counters()["completed"] if step else -LAYERS  # the first step makes the plan
        optimizer.zero_grad()
        x.sum().backward()
        optimizer.synchronize()
        assert all((weight.grad == layer + 1.5).all() for layer, weight in enumerate(weights))
    print("hidden", flush=True)
"""


@pytest.mark.slow
def test_most_of_the_communication_is_hidden():
    """Of 16 gradients of 1 MiB, in buckets of two, 14 are there before the backward of the last layer."""
    pytest.importorskip("torch")
    with emulated_hosts(2) as hosts:
        job = hosts.run(1, PROGRAM, {**ENVIRONMENT, "HVDLITE_BUCKET_BYTES": str(2 << 20)})
    assert job.stdout == {0: "hidden\n", 1: "hidden\n"}, job.report()
