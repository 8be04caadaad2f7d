"""What is wrong with GPU tensors is said on all ranks, and the job goes on."""

import re

import numpy as np
import pytest
from support.world import WORLD, on_all_ranks

from hvdlite import MismatchError
from hvdlite.dtypes import code_of_name
from hvdlite.requests import Request
from hvdlite.runtime import RUNTIME

STAND_INS = ("fakes",)
RANK, SIZE = WORLD.rank, WORLD.size
ALLREDUCE = 0


@pytest.fixture(autouse=True)
def goes_on(kind):
    """After each test an allreduce is right."""
    yield
    out = kind.door.allreduce(kind.tensor(np.full(9, RANK + 1.0)), op=kind.door.Sum, name="goes.on")
    np.testing.assert_array_equal(kind.host(out), np.full(9, sum(range(1, SIZE + 1))))


@pytest.mark.parametrize("name", ["allreduce", "allgather", "alltoall"])
def test_one_rank_has_its_tensor_on_the_host(hvd, kind, name, mode):
    """Refused on all ranks, with who has what; also when both are known from before."""
    if SIZE == 1:
        pytest.skip("needs two ranks")
    array = np.ones((SIZE, 3), np.float32)
    for _ in range(3):
        tensor = kind.tensor(array)
        if RANK == 1:
            tensor = tensor.cpu() if kind.name == "torch" and mode == "real" else array
        with pytest.raises(MismatchError) as caught:
            getattr(kind.door, name)(tensor, name=f"mixed.{name}")
        text = str(caught.value)
        assert f"mixed.{name}" in text
        assert re.search(r"GPU", text), text
        assert re.search(r"host|CPU", text), text
        on_all_ranks(text)


def test_shapes_that_differ(kind):
    if SIZE == 1:
        pytest.skip("needs two ranks")
    with pytest.raises(MismatchError, match=r"shapes.differ") as caught:
        kind.door.allreduce(kind.tensor(np.ones(RANK + 3)), name="shapes.differ")
    on_all_ranks(str(caught.value))


def test_a_gpu_that_is_not_there(kind):
    """Refused where it is submitted, before anybody hears of it."""
    engine = RUNTIME.require()
    address = np.ones(4, np.float32)
    dtype = int(code_of_name("float32"))
    with pytest.raises(ValueError, match=r"GPU 77"):
        engine.submit([Request(ALLREDUCE, "nowhere", dtype, (4,), address.ctypes.data, address.ctypes.data, device=77)])


def test_what_the_engine_does_not_do(kind):
    with pytest.raises(NotImplementedError, match="Average of bool"):
        kind.door.allreduce(kind.tensor(np.ones(3, bool)))
    with pytest.raises(NotImplementedError, match="complex"):
        kind.door.allreduce(kind.tensor(np.ones(3, np.complex64)), op=kind.door.Max)


def test_a_strided_array(kind):
    """Copied where somebody knows how, and refused with the remedy where nobody does."""
    if kind.name == "plain":

        class Strided:
            """Every second element."""

            def __init__(self, owner):
                described = owner.__cuda_array_interface__
                self.owner = owner
                self.__cuda_array_interface__ = {**described, "shape": (4,), "strides": (16,)}

        with pytest.raises(ValueError, match=r"not C-contiguous.*pass a contiguous copy"):
            kind.door.allreduce(Strided(kind.tensor(np.ones(8))))
        return
    out = kind.door.allreduce(kind.tensor(np.arange(8.0) + RANK)[::2], op=kind.door.Sum)
    np.testing.assert_array_equal(kind.host(out), SIZE * np.arange(0.0, 8.0, 2.0) + sum(range(SIZE)))
