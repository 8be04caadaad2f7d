"""Training on GPUs gives the numbers of one process with the whole batch: loops of the CPU tests, and what only GPUs have."""

import copy

import pytest
import torch
from support.world import WORLD
from torch_reference import DEVICE

from reference import STEPS, Pair, adam, assert_close, assert_same_bits, grads_of, mse, network, part_of, sgd, whole_batch  # isort: skip
from test_passes import (  # noqa: F401
    test_backward_passes_per_step,
    test_each_pass_is_reduced_once,
    test_each_pass_is_rounded_once_under_compression,
    test_no_sync,
    test_synchronize_more_than_once_reduces_once,
)
from test_training import (  # noqa: F401
    test_compression,
    test_gradient_predivide_factor,
    test_groups,
    test_kept_gradients_stay_the_same_tensors,
    test_mixed_dtypes_and_layouts,
    test_narrow_weights,
    test_plain_loop,
    test_process_set_of_some_ranks,
    test_steps_inside_backward,
    test_sum,
    test_zero_grad_of_optimizer_and_module,
)
from test_unused import test_ranks_that_run_out_of_data_join  # noqa: F401
from test_weight import (  # noqa: F401
    test_an_unused_parameter_is_averaged_over_all_samples,
    test_each_pass_has_its_weight_and_those_reduced_together_add_theirs,
    test_gradients_of_a_weighted_mean,
)

MORE_RANKS = (3,)  # one rank has nobody to average with
STAND_INS = ("host", "fakes, slow")
RANK, SIZE = WORLD.rank, WORLD.size


def convolutions():
    """A network of images in channels_last, without the batch's statistics."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 12, 3, stride=2),
        torch.nn.GroupNorm(3, 12),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(48, 5),
    )
    return model.to(DEVICE, torch.float64).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}], ids=["plain", "views"])
def test_a_convolutional_network(hvd, options, taken):
    pair = Pair(hvd, adam, convolutions, 1e-9, **options)
    with taken():
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(step)
            images = torch.randn(4 * SIZE, 3, 9, 9, generator=generator, dtype=torch.float64).to(DEVICE)
            pair.zero()
            pair.model(images[4 * RANK : 4 * RANK + 4]).square().mean().backward()
            pair.twin(images).square().mean().backward()
            pair.check_grads()
            pair.step()
    pair.check_weights()


def test_gradients_went_where_they_were_asked_to(hvd, taken):
    """All of a plain training's operations take the one route."""
    pair = Pair(hvd, sgd)
    with taken():
        for step in range(3):
            part, _ = pair.parts(step)
            pair.zero()
            mse(pair.model, *part).backward()
            pair.step()


def test_states_are_broadcast_in_gpu_memory(hvd):
    model = network(seed=7 + RANK)
    optimizer = hvd.DistributedOptimizer(adam(model.parameters()), model.named_parameters())
    mse(model, *part_of(whole_batch(0, SIZE), RANK)).backward()
    optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=SIZE - 1)
    hvd.broadcast_optimizer_state(optimizer, root_rank=SIZE - 1)
    assert_same_bits(list(model.parameters()))
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    assert_same_bits(moments)
    assert {moment.device for moment in moments} == {DEVICE}


def test_objects_with_gpu_tensors(hvd):
    found = hvd.broadcast_object({"weights": torch.arange(3.0, device=DEVICE) + RANK, "epoch": RANK}, root_rank=SIZE - 1)
    assert found["epoch"] == SIZE - 1
    assert found["weights"].tolist() == [SIZE - 1.0, SIZE, SIZE + 1.0]


def test_sparse_gradients(hvd):
    tables = [torch.nn.Embedding(9, 4, sparse=True, device=DEVICE, dtype=torch.float64) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    hvd.broadcast_parameters(tables[0].state_dict(), 0)
    hvd.broadcast_parameters(tables[1].state_dict(), 0)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(tables[0].parameters(), lr=0.1), tables[0].named_parameters())
    twin = torch.optim.SGD(tables[1].parameters(), lr=0.1)
    for step in range(3):
        rows = [torch.tensor([(step + rank) % 9, rank, 8], device=DEVICE) for rank in range(SIZE)]
        for which, table, places in ((optimizer, tables[0], rows[RANK]), (twin, tables[1], torch.cat(rows))):
            which.zero_grad()
            table(places).square().sum(1).mean().backward()
            which.step()
    assert_close([tables[0].weight], [tables[1].weight], 1e-12)


def test_a_model_on_the_gpu_and_a_part_on_the_host(hvd):
    """Gradients of one optimizer in two kinds of memory, as in models whose embedding is too large for the GPU."""
    model = torch.nn.ModuleDict({"host": torch.nn.Linear(4, 4), "gpu": torch.nn.Linear(4, 4).to(DEVICE)})
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    twin = copy.deepcopy(model)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    generator = torch.Generator().manual_seed(2)
    batch = torch.randn(3 * SIZE, 4, generator=generator)
    for net, rows in ((model, batch[3 * RANK : 3 * RANK + 3]), (twin, batch)):
        net["gpu"](net["host"](rows).tanh().to(DEVICE)).square().mean().backward()
    optimizer.synchronize()
    for one, other in zip(grads_of(model), grads_of(twin), strict=True):
        assert one.device == other.device
        assert_close([one], [other], 1e-6)


def test_data_parallel_of_torch(hvd):
    """DistributedDataParallel on backend hvdlite."""
    import torch.distributed as dist

    import hvdlite.torch.distributed  # noqa: F401

    dist.init_process_group("hvdlite")
    try:
        model, twin = network(), network()
        wrapped = torch.nn.parallel.DistributedDataParallel(model)
        optimizer, twin_optimizer = sgd(model.parameters()), sgd(twin.parameters())
        for step in range(STEPS):
            whole = whole_batch(step, SIZE)
            optimizer.zero_grad()
            twin_optimizer.zero_grad()
            mse(wrapped, *part_of(whole, RANK)).backward()
            mse(twin, *whole).backward()
            assert_close(grads_of(model), grads_of(twin))
            optimizer.step()
            twin_optimizer.step()
        total = torch.full((5,), RANK + 1.0, device=DEVICE)
        dist.all_reduce(total)
        assert total.tolist() == [sum(range(1, SIZE + 1))] * 5
    finally:
        dist.destroy_process_group()
