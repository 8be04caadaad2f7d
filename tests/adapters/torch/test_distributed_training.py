"""What torch builds on backend "hvdlite": DDP against gloo's, sharded parameters and optimizers, checkpoints."""

import pytest
import torch
import torch.distributed as dist
from groups import RANK, SIZE, WORLD, check, gloo, value, world  # noqa: F401
from reference import assert_close, assert_same_bits, mse, network, part_of, whole_batch
from torch.nn.parallel import DistributedDataParallel

MORE_RANKS = (3, 4)

# --- DDP ------------------------------------------------------------------------------------------------------------------


class Branches(torch.nn.Module):
    """Uses one of two layers, another on each rank and in each step."""

    def __init__(self):
        super().__init__()
        self.body = network()
        self.one, self.other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.double()

    def forward(self, inputs):
        branch = self.one if (inputs[0, 0] > 0) else self.other
        return branch(self.body(inputs))


def train(build, group, steps=6, accumulate=False, **options):
    """Trains on this rank's parts with momentum and weight decay; the model."""
    torch.manual_seed(100 + RANK)  # DDP gives all ranks rank 0's weights
    model = DistributedDataParallel(build(), process_group=group, bucket_cap_mb=0.0003, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        if accumulate:
            with model.no_sync():
                mse(model, *part_of(whole_batch(100 + step, SIZE), RANK)).backward()
        mse(model, *part_of(whole_batch(step, SIZE), RANK)).backward()
        optimizer.step()
    return model.module


def with_noise():
    """A model that differs by rank before DDP."""
    model = network()
    with torch.no_grad():
        for param in model.parameters():
            param.add_(torch.randn(param.shape, generator=torch.Generator().manual_seed(RANK)))
    return model


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (with_noise, {}),
        (with_noise, {"gradient_as_bucket_view": True}),
        (with_noise, {"accumulate": True}),
        (with_noise, {"static_graph": True}),
        (Branches, {"find_unused_parameters": True}),
    ],
)
def test_ddp_trains_as_on_gloo(gloo, build, options):  # noqa: F811
    ours = train(build, None, **options)
    theirs = train(build, gloo, **options)
    assert_close(list(ours.parameters()), list(theirs.parameters()))
    assert_same_bits(list(ours.parameters()))
    moved = [(a - b).abs().max().item() for a, b in zip(ours.parameters(), build().parameters(), strict=True)]
    assert max(moved) > 0.01


def test_ddp_synchronizes_buffers(world):  # noqa: F811
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)).double()
    model = DistributedDataParallel(model)
    for step in range(3):
        mse(model, *part_of(whole_batch(step, SIZE), RANK)).backward()
    model(whole_batch(9, SIZE)[0])
    assert_same_bits([model.module[0].weight.grad])
    dist.all_gather_object(states := [None] * SIZE, model.module[1].num_batches_tracked.item())
    assert states == [4] * SIZE


def test_ddp_with_a_float8_base(world):  # noqa: F811
    """Weights and buffers of a dtype that cannot be reduced come from rank 0, before each pass too."""
    model = torch.nn.Linear(4, 2).double()
    model.base = torch.nn.Parameter(torch.full((2, 4), 1.0 + RANK).to(torch.float8_e4m3fn), requires_grad=False)
    model.register_buffer("scale", torch.full((3,), 2.0 + RANK).to(torch.float8_e5m2))
    parallel = DistributedDataParallel(model)
    assert model.base.float().unique().tolist() == [1.0]
    model.scale.copy_(torch.full((3,), 4.0 + RANK))
    parallel(value(RANK, (3, 4))).sum().backward()
    assert model.scale.float().tolist() == [4.0] * 3
    assert_same_bits([model.weight.grad])
    parts = [torch.zeros(3, dtype=torch.float8_e5m2) for _ in range(SIZE)]
    dist.all_gather(parts, torch.full((3,), 1.0 + RANK).to(torch.float8_e5m2))
    assert [part.float().tolist() for part in parts] == [[1.0 + rank] * 3 for rank in range(SIZE)]


def test_a_comm_hook(world):  # noqa: F811
    """DDP hands a bucket to user code, which waits for a future."""
    model = DistributedDataParallel(network())

    def hook(state, bucket):
        future = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    mse(model, *part_of(whole_batch(0, SIZE), RANK)).backward()
    twin = network()
    mse(twin, *whole_batch(0, SIZE)).backward()
    check([param.grad for param in model.parameters()], [param.grad for param in twin.parameters()])


def test_callbacks_may_wait_for_other_futures(world):  # noqa: F811
    """As DDP's PowerSGD hook does."""
    last = dist.all_reduce(tensor := torch.ones(1), async_op=True).get_future()
    for _ in range(3):
        last = last.then(lambda done: dist.all_reduce(done.value()[0], async_op=True).get_future().wait())
    last.wait()
    assert tensor == SIZE**4


def test_ddp_with_sparse_gradients(gloo):  # noqa: F811
    def trained(group):
        model = DistributedDataParallel(torch.nn.Embedding(SIZE + 2, 3, sparse=True).double(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor([RANK, SIZE, SIZE])).square().sum().backward()
            optimizer.step()
        return model.module.weight

    torch.manual_seed(2)
    ours = trained(None)
    torch.manual_seed(2)
    check([ours], [trained(gloo)])
    assert_same_bits([ours])


def test_ddp_with_unequal_numbers_of_batches(gloo):  # noqa: F811
    def trained(group):
        model = DistributedDataParallel(network(), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with model.join():
            for step in range(2 + RANK):
                optimizer.zero_grad()
                mse(model, *part_of(whole_batch(step, SIZE), RANK)).backward()
                optimizer.step()
        return list(model.module.parameters())

    assert_close(ours := trained(None), trained(gloo))
    assert_same_bits(ours)
    # One process: the mean over the ranks that the job began with, of those that still have a batch.
    twin = network()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for step in range(1 + SIZE):
        optimizer.zero_grad()
        for rank in range(SIZE):
            if step < 2 + rank:
                (mse(twin, *part_of(whole_batch(step, SIZE), rank)) / SIZE).backward()
        optimizer.step()
    assert_close(ours, list(twin.parameters()))


# --- what torch builds on the collectives ---------------------------------------------------------------------------------


def stepped(model, optimizer, inputs, targets):
    mse(model, inputs, targets).backward()
    optimizer.step()
    return model


def test_fully_sharded_parameters():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    from torch.distributed.device_mesh import init_device_mesh

    model = network()
    fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (SIZE,)))
    stepped(model, torch.optim.SGD(model.parameters(), lr=0.1), *part_of(whole_batch(0, SIZE), RANK))
    twin = network()
    stepped(twin, torch.optim.SGD(twin.parameters(), lr=0.1), *whole_batch(0, SIZE))
    check([param.full_tensor() for param in model.parameters()], list(twin.parameters()))


def test_fully_sharded_parameters_of_the_first_kind():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    model = network()
    model = fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    stepped(model, torch.optim.SGD(model.parameters(), lr=0.1), *part_of(whole_batch(0, SIZE), RANK))
    twin = network()
    stepped(twin, torch.optim.SGD(twin.parameters(), lr=0.1), *whole_batch(0, SIZE))
    with fsdp.FullyShardedDataParallel.summon_full_params(model):
        check([param.detach().clone() for param in model.parameters()], list(twin.parameters()))


def test_sharded_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    stepped(model, optimizer, *part_of(whole_batch(0, SIZE), RANK))
    twin = network()
    stepped(twin, torch.optim.Adam(twin.parameters(), lr=0.1), *whole_batch(0, SIZE))
    check(list(model.parameters()), list(twin.parameters()))


def test_checkpoints(tmp_path):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    if not hasattr(checkpoint, "save"):
        pytest.skip("this torch saves checkpoints in another way")
    folder = WORLD.bcast(str(tmp_path))
    checkpoint.save({"weight": value(0)}, checkpoint_id=folder)
    loaded = {"weight": torch.zeros(3, 2, dtype=torch.float64)}
    checkpoint.load(loaded, checkpoint_id=folder)
    check([loaded["weight"]], [value(0)])
