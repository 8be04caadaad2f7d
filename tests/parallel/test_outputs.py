"""Results of blocking operations: in one step where that is possible, large ones each their own and in recycled memory."""

import numpy as np
import pytest
from support.mappings import mapping_at
from support.world import WORLD

from hvdlite import submission
from hvdlite.runtime import RUNTIME

torch = pytest.importorskip("torch")

RANK, SIZE = WORLD.rank, WORLD.size
RANKS = (2, 3)
MORE_RANKS = (1,)
COUNT = 1 << 19  # 2 MiB of float32


def make(framework, value):
    return torch.full((COUNT,), float(value)) if framework == "torch" else np.full(COUNT, value, np.float32)


def pointer(tensor):
    return tensor.data_ptr() if isinstance(tensor, torch.Tensor) else tensor.__array_interface__["data"][0]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_results_that_live_are_apart(hvd, framework):
    values = [make(framework, (step + 1) * (RANK + 1)) for step in range(6)]
    outputs = [hvd.allreduce(value, op=hvd.Sum, name=f"apart.{step}") for step, value in enumerate(values)]
    outputs += [hvd.broadcast(value, SIZE - 1, name=f"apart.{step}") for step, value in enumerate(values)]
    assert len({pointer(output) for output in outputs} | {pointer(value) for value in values}) == 18
    for step in range(6):
        assert (outputs[step] == (step + 1) * SIZE * (SIZE + 1) / 2).all()
        assert (outputs[6 + step] == (step + 1) * SIZE).all()
        assert (values[step] == (step + 1) * (RANK + 1)).all()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_the_memory_of_a_dropped_result_is_used_again(hvd, framework):
    value = make(framework, RANK)
    places = set()
    for _ in range(5):
        for output in (
            hvd.allreduce(value, op=hvd.Sum),
            hvd.broadcast(value, 0),
            hvd.grouped_allreduce([value], op=hvd.Sum)[0],
        ):
            places.add(pointer(output))
        del output
    assert len(places) <= 4  # up to three results live at a time


def test_a_result_may_be_the_next_input(hvd):
    tensor = make("torch", 1)
    for _ in range(8):
        tensor = hvd.allreduce(tensor, op=hvd.Average)
    assert (tensor == 1).all()


def test_results_take_part_in_autograd(hvd):
    output = hvd.allreduce(make("torch", RANK), op=hvd.Sum).requires_grad_(True)
    (output * 3).sum().backward()
    assert (output.grad == 3).all()
    with torch.no_grad():
        output.add_(1)
    assert (output == SIZE * (SIZE - 1) / 2 + 1).all()


def test_a_dropped_handle_keeps_the_memory_until_the_operation_ended(hvd):
    late = make("torch", RANK)
    hvd.allreduce_async(late, op=hvd.Sum, name="dropped")
    others = [hvd.allreduce(make("torch", step), op=hvd.Sum, name=f"kept.{step}") for step in range(4)]
    for step, output in enumerate(others):
        assert (output == step * SIZE).all()


@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_plain_tensors_take_one_step(hvd, monkeypatch, make):
    hvd.allreduce_(make(3))  # the first of its dtype goes the general way
    if make is torch.ones and not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch has no DLPack exchange functions before 2.10")
    monkeypatch.setattr(submission, "_same_shape", None)
    tensor = make(3) * (RANK + 1)
    assert hvd.allreduce_(tensor, op=hvd.Sum, prescale_factor=2.0) is tensor
    assert (tensor == SIZE * (SIZE + 1)).all()
    tensor[...] = RANK
    assert (hvd.allreduce(tensor, op=hvd.Sum, name="one step") == SIZE * (SIZE - 1) / 2).all()
    assert (hvd.broadcast(tensor, SIZE - 1) == SIZE - 1).all()
    assert (tensor == RANK).all()
    assert hvd.broadcast_(tensor, SIZE - 1, name="one step") is tensor
    assert (tensor == SIZE - 1).all()


def test_autograd_notices_a_result_in_place(hvd):
    hvd.allreduce_(torch.ones(1))
    weight = torch.ones(3, requires_grad=True)
    factor = torch.ones(3)
    product = (weight * factor).sum()
    hvd.allreduce_(factor)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_every_rank_stores_into_the_results_of_all(hvd, framework):
    before = RUNTIME.engine.counters()["open_results"]
    value = make(framework, RANK + 1)
    for step in range(4):
        output = hvd.allreduce(value, op=hvd.Sum)
        assert (output == SIZE * (SIZE + 1) / 2).all(), step
        assert ("hvdlite-results" in mapping_at(pointer(output))) == (SIZE > 1)
    hvd.allreduce_(output, op=hvd.Sum)
    assert (output == SIZE * SIZE * (SIZE + 1) / 2).all()
    assert RUNTIME.engine.counters()["open_results"] - before == (5 if SIZE > 1 else 0)


def test_results_of_a_rank_that_makes_its_own_room(hvd):
    """Where the others cannot store: all get the same."""
    output = make("numpy", 0) if RANK == 0 else hvd.allreduce(make("numpy", 0), name="room", op=hvd.Sum)
    if RANK == 0:
        hvd.allreduce(make("numpy", 0), name="room", op=hvd.Sum)
    output[:] = RANK + 1
    hvd.allreduce_(output, op=hvd.Sum)
    assert (output == SIZE * (SIZE + 1) / 2).all()
