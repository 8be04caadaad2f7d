"""The ways in which torch spreads a model over ranks, on backend "hvdlite": each trains as one process on the whole batch."""

import itertools

import pytest
import torch
import torch.distributed as dist
from groups import RANK, SIZE, WORLD, check, world  # noqa: F401
from reference import assert_close, assert_same_bits, part_of
from torch.nn.parallel import DistributedDataParallel

# Slow: most of the time is torch's own. test_distributed_training.py uses the same collectives in every run.
RANKS = ()
MORE_RANKS = (2, 4)  # meshes of two dimensions, and the groups in them, need four

mesh_module = pytest.importorskip("torch.distributed.device_mesh")
tensor = pytest.importorskip("torch.distributed.tensor")
if not hasattr(tensor, "distribute_tensor"):
    pytest.skip("this torch has DTensor under another name", allow_module_level=True)

from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor  # noqa: E402

WORDS, WIDTH, LENGTH, HEADS = 11, 16, 6, 4
STEPS = 4


class Block(torch.nn.Module):
    """Attention and a network of two layers, as parallelism over tensors wants them: with projections of their own."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        normed = self.norm(x)
        split = [
            layer(normed).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        ]
        heads = torch.nn.functional.scaled_dot_product_attention(*split, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(-2))
        return x + self.down(torch.tanh(self.up(x)))


class Transformer(torch.nn.Module):
    """Two blocks between words and words."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, WORDS)
        self.double()

    def forward(self, words):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(0, 1))


def batch(step, groups):
    """Words for each of so many groups of ranks, which differ; the whole batch is the same on all ranks."""
    words = torch.randint(WORDS, (2 * groups, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    return words[:, :-1], words[:, 1:]


def loss_of(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(inputs), targets.flatten())


def train(model, part=0, groups=1, rows=2, clip=True):
    """The losses of some steps on one part of the batches, of so many rows."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, *part_of(batch(step, groups), part, rows))
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def whole(param):
    return param.full_tensor() if hasattr(param, "full_tensor") else param


def assert_trained_as_one_process(model, losses, groups, clip=True):
    twin = Transformer()
    expected, params = train(twin, groups=groups, rows=2 * groups, clip=clip), list(twin.parameters())
    assert_close([losses], [expected], 1e-9)
    found = [whole(param) for param in model.parameters()]
    assert_close(found, params, 1e-9)
    assert_same_bits(found)


def averaged(losses):
    dist.all_reduce(losses, op=dist.ReduceOp.AVG)
    return losses


# --- shards of parameters -------------------------------------------------------------------------------------------------


def fully_shard(model, mesh):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    for block in model.blocks:
        fsdp.fully_shard(block, mesh=mesh)
    return fsdp.fully_shard(model, mesh=mesh)


def test_fully_sharded():
    model = fully_shard(Transformer(), mesh_module.init_device_mesh("cpu", (SIZE,)))
    held = sum(param.to_local().numel() for param in model.parameters())
    assert held < sum(param.numel() for param in model.parameters()) / SIZE * 1.2
    assert_trained_as_one_process(model, averaged(train(model, RANK, SIZE)), SIZE)


def test_sharded_in_groups_and_replicated_between_them():
    mesh = mesh_module.init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("replicas", "shards"))
    model = fully_shard(Transformer(), mesh)
    assert_trained_as_one_process(model, averaged(train(model, RANK, SIZE)), SIZE)


def test_a_checkpoint_of_all_ranks_is_read_by_half_of_them(tmp_path):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    folder = WORLD.bcast(str(tmp_path))
    model = fully_shard(Transformer(), mesh_module.init_device_mesh("cpu", (SIZE,)))
    train(model, RANK, SIZE)
    expected = [param.full_tensor() for param in model.parameters()]
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=folder)
    half = list(range(SIZE // 2))
    group = dist.new_group(half)
    if RANK in half:
        mesh = mesh_module.DeviceMesh.from_group(group, "cpu")
        resumed = fully_shard(Transformer(), mesh)
        state = {"model": resumed.state_dict()}
        checkpoint.load(state, checkpoint_id=folder, process_group=group)
        resumed.load_state_dict(state["model"])
        check([param.full_tensor() for param in resumed.parameters()], expected)
    dist.barrier()


# --- tensors that are spread over a mesh ----------------------------------------------------------------------------------

PLACEMENTS = [Shard(0), Shard(1), Replicate()]


@pytest.mark.parametrize("shape", [(4, 8), (5, 7), (1, 3)])
def test_every_change_of_placement(shape):
    mesh = mesh_module.init_device_mesh("cpu", (SIZE,))
    value = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for before, after in itertools.product(PLACEMENTS, PLACEMENTS):
        moved = distribute_tensor(value, mesh, [before]).redistribute(mesh, [after])
        assert torch.equal(moved.full_tensor(), value)
        assert torch.equal(moved.to_local(), distribute_tensor(value, mesh, [after]).to_local())
    for after in PLACEMENTS:
        summed = tensor.DTensor.from_local(value * (RANK + 1), mesh, [Partial()]).redistribute(mesh, [after])
        assert_close([summed.full_tensor()], [value * sum(range(1, SIZE + 1))])


def test_every_change_of_placement_on_a_mesh_of_two_dimensions():
    mesh = mesh_module.init_device_mesh("cpu", (2, SIZE // 2), mesh_dim_names=("rows", "columns"))
    value = torch.randn(8, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    pairs = list(itertools.product(PLACEMENTS, PLACEMENTS))
    for before, after in itertools.product(pairs, pairs):
        moved = distribute_tensor(value, mesh, before).redistribute(mesh, after)
        assert torch.equal(moved.full_tensor(), value)
    assert mesh["rows"].size() == 2
    assert mesh["columns"].get_group().size() == SIZE // 2


def parallelize(model, mesh):
    """Splits each block's matrices: by columns where they spread, by rows where they join."""
    parallel = pytest.importorskip("torch.distributed.tensor.parallel")
    spread, join = parallel.ColwiseParallel, parallel.RowwiseParallel
    plan = {"query": spread(), "key": spread(), "value": spread(), "out": join(), "up": spread(), "down": join()}
    for block in model.blocks:
        parallel.parallelize_module(block, mesh, plan)
    return model


def test_parallel_over_tensors():
    model = parallelize(Transformer(), mesh_module.init_device_mesh("cpu", (SIZE,)))
    assert model.blocks[0].up.weight.to_local().shape == (3 * WIDTH // SIZE, WIDTH)
    assert_trained_as_one_process(model, train(model, clip=False), 1, clip=False)  # torch's norm takes tensors of one kind


def test_parallel_over_tensors_and_data():
    mesh = mesh_module.init_device_mesh("cpu", (SIZE // 2, 2), mesh_dim_names=("data", "tensors"))
    model = fully_shard(parallelize(Transformer(), mesh["tensors"]), mesh["data"])
    losses = train(model, RANK // 2, SIZE // 2, clip=False)
    dist.all_reduce(losses, op=dist.ReduceOp.AVG, group=mesh["data"].get_group())
    assert_trained_as_one_process(model, losses, SIZE // 2, clip=False)


# --- hooks of DDP ---------------------------------------------------------------------------------------------------------


def test_a_hook_that_compresses_to_float16():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DistributedDataParallel(Transformer(), bucket_cap_mb=0.001)
    model.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    losses = averaged(train(model, RANK, SIZE))
    expected = train(Transformer(), groups=SIZE, rows=2 * SIZE)
    assert_close([losses], [expected], 0.02)
    assert not torch.equal(losses, expected)
    assert_same_bits(list(model.parameters()))


def test_power_sgd_with_several_buckets():
    """Which crashes on gloo. With as many ranks as a matrix has it is exact but for rounding."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    model = DistributedDataParallel(Transformer(), bucket_cap_mb=0.001)
    state = power.PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=WIDTH, start_powerSGD_iter=2, min_compression_rate=0.1
    )
    model.register_comm_hook(state, power.powerSGD_hook)
    losses = averaged(train(model, RANK, SIZE))
    expected = train(Transformer(), groups=SIZE, rows=2 * SIZE)
    assert_close([losses], [expected], 0.02)
    assert len(state.p_memory_dict) > 1
    assert_same_bits(list(model.parameters()))
