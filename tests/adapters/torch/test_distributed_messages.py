"""torch.distributed on backend "hvdlite": messages from rank to rank, and the pipelines that stand on them."""

import pytest
import torch
import torch.distributed as dist
from groups import RANK, SIZE, check, value, world  # noqa: F401
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

MORE_RANKS = (3, 4)
RIGHT, LEFT = (RANK + 1) % SIZE, (RANK - 1) % SIZE
SHAPES = [(3, 2), (40, 500)]  # what travels whole, and what does not


def around(shape, dtype):
    """A send to the right, a receive from the left."""
    mine, got = value(RANK, shape, dtype), torch.zeros(shape, dtype=dtype)
    work = dist.irecv(got, LEFT)
    dist.send(mine, RIGHT)
    assert work.wait() is True
    assert work.is_success()
    return got


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.complex64])
def test_send_and_recv(shape, dtype):
    check(around(shape, dtype), value(LEFT, shape, dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_from_any_source(shape):
    if RANK == 0:
        sources = []
        for _ in range(SIZE - 1):
            got = torch.zeros(shape, dtype=torch.float64)
            sources.append(dist.recv(got, tag=4))
            check(got, value(sources[-1], shape))
        assert sorted(sources) == list(range(1, SIZE))
    else:
        dist.send(value(RANK, shape), 0, tag=4)
    dist.barrier()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_batch_in_both_directions(shape):
    got = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, value(RANK, shape), RIGHT, tag=1),
            dist.P2POp(dist.isend, value(RANK, shape, salt=1), LEFT, tag=2),
            dist.P2POp(dist.irecv, got[0], RIGHT, tag=2),
            dist.P2POp(dist.irecv, got[1], LEFT, tag=1),
        ]
    )
    for work in works:
        work.wait()
    check(got[0], value(RIGHT, shape, salt=1))
    check(got[1], value(LEFT, shape))


def test_a_future_of_a_receive():
    got = torch.zeros(3, 2, dtype=torch.float64)
    future = dist.irecv(got, LEFT).get_future().then(lambda done: done.value()[0] * 2)
    dist.isend(value(RANK), RIGHT).wait()
    check(future.wait(), 2 * value(LEFT))


def test_objects():
    sent = [{"rank": RANK}, "text", list(range(4000))]
    if RANK == 0:
        dist.send_object_list(sent, dst=SIZE - 1)
    if RANK == SIZE - 1:
        got = [None] * 3
        assert dist.recv_object_list(got, src=0) == 0
        assert got == [{"rank": 0}, *sent[1:]]
    dist.barrier()


def test_a_group_numbers_its_ranks():
    group = dist.new_group([0, SIZE - 1])
    if RANK == SIZE - 1:
        dist.send(value(RANK), 0, group=group)
    if RANK == 0:
        got = torch.zeros(3, 2, dtype=torch.float64)
        assert dist.recv(got, group=group) == SIZE - 1
        check(got, value(SIZE - 1))
    dist.barrier()


def test_errors_name_operation_and_group():
    if RANK == 0:

        def send_until_told():
            dist.send(value(RANK), 1)
            dist.recv(torch.zeros(0), 1, tag=7)  # the other has seen it: the next call is told, or this one already
            dist.send(value(RANK), 1)

        with pytest.raises(
            RuntimeError, match=r"an earlier send was refused: .*rank 0 sent .* 6 elements of float64, but rank 1 receives 5"
        ):
            send_until_told()
    if RANK == 1:
        with pytest.raises(RuntimeError, match="6 elements of float64, but rank 1 receives 5"):
            dist.recv(torch.zeros(5, dtype=torch.float64), 0)
        dist.send(torch.zeros(0), 0, tag=7)
    dist.barrier()


# --- pipelines --------------------------------------------------------------------------------------------------------

WIDTH, BATCH, MICROBATCHES = 24, 16, 8


def layers(stages):
    generator = torch.Generator().manual_seed(5)
    made = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(stages)]
    for layer in made:
        for parameter in layer.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) / WIDTH**0.5
    return made


def loss_of(output, target):
    return torch.nn.functional.mse_loss(output, target)


def train_as_one_process(schedule, mine, number, stages, group=None, part=0, parts=1):
    """Steps of this rank's stage on its part of the batch; losses and gradients are those of one process with all parts."""
    whole = layers(stages)
    stage = PipelineStage(mine, number, stages, torch.device("cpu"), group=group)
    pipeline = schedule(stage, MICROBATCHES, loss_fn=loss_of)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        data, target = torch.randn(2, parts, BATCH, WIDTH, generator=generator)
        losses: list[torch.Tensor] = []
        if number == 0:
            pipeline.step(data[part])
        elif number == stages - 1:
            pipeline.step(target=target[part], losses=losses)
        else:
            pipeline.step()
        output = torch.nn.Sequential(*whole)(data)
        expected = loss_of(output, target)
        expected.backward()
        if losses:
            torch.testing.assert_close(torch.stack(losses).mean(), loss_of(output[part], target[part]).detach())
        for parameter, reference in zip(mine.parameters(), whole[number].parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, reference.grad)
        for parameter in (*mine.parameters(), *torch.nn.Sequential(*whole).parameters()):
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_a_pipeline_has_the_losses_and_gradients_of_one_process(schedule):
    train_as_one_process(schedule, layers(SIZE)[RANK], RANK, SIZE)


@pytest.mark.skipif(SIZE != 4, reason="two pipelines of two stages each")
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_pipelines_with_different_data(schedule):
    """DDP averages the gradients of a stage's ranks, once after all microbatches.

    With find_unused_parameters, because without it DDP makes its buckets anew after the first backward pass, and fails in torch
    when there were several (reducer.cpp, `rebuild_buckets`).
    """
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "stages"))
    part, number = mesh.get_coordinate()
    mine = DistributedDataParallel(layers(2)[number], process_group=mesh["data"].get_group(), find_unused_parameters=True)
    train_as_one_process(schedule, mine, number, 2, mesh["stages"].get_group(), part, 2)
