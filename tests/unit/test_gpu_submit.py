"""What is refused of requests in GPU memory: by one rank alone, before anything is sent, or because ranks differ."""

import numpy as np
import pytest
from support import fake_gpu
from support.fake_gpu import fake_gpus  # noqa: F401
from support.gpu_ranks import WIRE_BFLOAT16, WIRE_FLOAT16, run_gpu_ranks
from support.thread_ranks import ABSENT, ALLREDUCE, BROADCAST, MIN, REDUCESCATTER, SUM, outcomes_of

from hvdlite.dtypes import DType
from hvdlite.errors import InvalidArgumentError, MismatchError, SystemFailure, UnsupportedError

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=str(fake_gpu.missing()))

DEVICE_DIFFERS = r"'x' .*device differs: (CPU on rank 1, GPU on ranks 0, 2|GPU on ranks 0, 2, CPU on rank 1); keep the tensor"


@pytest.fixture(params=["nccl", "staged"])
def route(request):
    return request.param


def test_memory_of_both_kinds_under_one_name(fake_gpus, route):  # noqa: F811
    def body(rank):
        values = np.ones(3, np.float32)
        mine = rank.host if rank.rank == 1 else rank
        with pytest.raises(MismatchError, match=DEVICE_DIFFERS):
            mine.allreduce("x", values)
        np.testing.assert_array_equal(rank.allreduce("y", values), 3)

    run_gpu_ranks(fake_gpus, 3, body, {"gpu_route": route})


def test_wire_dtypes_must_agree(fake_gpus):  # noqa: F811
    def body(rank):
        values = np.ones(3, np.float32)
        with pytest.raises(MismatchError, match="wire dtype differs: float32 on rank 0, float16 on rank 1; compress"):
            rank.allreduce("x", values, flags=WIRE_FLOAT16 if rank.rank else 0)

    run_gpu_ranks(fake_gpus, 2, body)


REFUSED = {
    "integers": ({"flags": WIRE_FLOAT16}, "int32", UnsupportedError, "int32 cannot travel as float16"),
    "half": ({"flags": WIRE_BFLOAT16}, "float16", UnsupportedError, "float16 cannot travel as bfloat16"),
    "min": ({"flags": WIRE_FLOAT16, "op": MIN}, "float32", UnsupportedError, "only an allreduce with Sum or Average"),
    "both": ({"flags": WIRE_FLOAT16 | WIRE_BFLOAT16}, "float32", InvalidArgumentError, "not as both"),
    "gpu": ({"device": 77}, "float32", InvalidArgumentError, "there is no GPU 77"),
    "other gpu": ({"device": 1}, "float32", InvalidArgumentError, "not on GPU 1 but on GPU 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_one_rank_alone_can_refuse(fake_gpus, case):  # noqa: F811
    options, dtype, error, text = REFUSED[case]

    def body(rank):
        array = rank.array(np.ones(3, dtype))
        with pytest.raises(error, match=text):
            rank.start(ALLREDUCE, "x", array, array, **options)
        assert rank.counters()["submitted"] == 0

    run_gpu_ranks(fake_gpus, 1, body)


@pytest.mark.parametrize("flags", [0, ABSENT])
def test_a_host_pointer_that_claims_to_be_on_a_gpu(fake_gpus, flags):  # noqa: F811
    """A rank without a value gets the result there."""

    def body(rank):
        host = np.ones(3000, np.float32)
        with pytest.raises(
            InvalidArgumentError, match=r"'x' .*its memory at 0x[0-9a-f]+ is not on GPU 0 but in host memory; give"
        ):
            rank.host.start(ALLREDUCE, "x", host, host, device=0, stream=rank.stream.handle, flags=flags)

    run_gpu_ranks(fake_gpus, 1, body)


def test_an_error_of_the_driver_about_a_pointer_names_the_tensor(fake_gpus):  # noqa: F811
    def body(rank):
        array = rank.array(np.ones(3, np.float32))
        fake_gpus.fail("cuPointerGetAttribute", 1, 999)
        with pytest.raises(SystemFailure, match=r"allreduce of 'x' in process set 0: .*cuPointerGetAttribute"):
            rank.start(ALLREDUCE, "x", array, array)

    run_gpu_ranks(fake_gpus, 1, body)


class Shifted:
    """An array that begins in the middle of a number."""

    def __init__(self, array, count):
        self.ptr, self.shape, self.dtype = array.ptr + 2, (count,), array.dtype
        self.device, self.stream, self.whole = array.device, array.stream, array


@pytest.mark.parametrize("kind", [ALLREDUCE, REDUCESCATTER])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_an_array_that_begins_in_the_middle_of_a_number(fake_gpus, route, kind, dtype):  # noqa: F811
    """It is refused on its own rank, which goes on, whether it is the input or the output; only bytes may lie anywhere."""
    size = 8 if dtype == "complex128" else 4
    text = rf"'x' .*its memory on GPU 0 begins at 0x[0-9a-f]+, which is no multiple of the {size} bytes.*give a copy of it"

    def body(rank):
        array = rank.array(np.ones(9, dtype))
        odd = Shifted(array, 8)
        if rank.rank == 0:
            for source, target in ((odd, odd), (array, odd)) if kind == ALLREDUCE else ((odd, None),):
                with pytest.raises(InvalidArgumentError, match=text):
                    rank.start(kind, "x", source, target)
            assert rank.counters()["submitted"] == 0
        np.testing.assert_array_equal(rank.allreduce("x", np.ones(8, dtype)), 2)
        rank.wait(rank.start(BROADCAST, "b", odd, odd, root=0))

    run_gpu_ranks(fake_gpus, 2, body, {"gpu_route": route})


def test_a_prepared_group_with_an_array_that_begins_in_the_middle_of_a_number(fake_gpus):  # noqa: F811
    def body(rank):
        array = rank.array(np.ones(9, np.float32))
        requests = [(ALLREDUCE, f"x{place}", int(DType.FLOAT32), (4,), 0, 0, SUM) for place in range(2)]
        group = rank.engine.prepare([(*request, 0, 0, 1.0, 1.0, "g", 2, i, (), 0) for i, request in enumerate(requests)])
        with pytest.raises(InvalidArgumentError, match=r"'x1' .*which is no multiple of the 4 bytes"):
            rank.engine.submit_prepared(group, [array.ptr, array.ptr + 18], streams=(rank.stream.handle,))
        handle = rank.engine.submit_prepared(group, [array.ptr, array.ptr + 16], streams=(rank.stream.handle,))
        assert outcomes_of(rank.engine, [handle], streams=(rank.stream.handle,)) == [1, 1]
        np.testing.assert_array_equal(array.numpy(), 1)

    run_gpu_ranks(fake_gpus, 1, body)


def test_compression_on_the_way_is_not_for_host_memory(fake_gpus):  # noqa: F811
    def body(rank):
        with pytest.raises(UnsupportedError, match="the engine casts only GPU memory to float16"):
            rank.host.allreduce("x", np.ones(3, np.float32), flags=WIRE_FLOAT16)

    run_gpu_ranks(fake_gpus, 1, body)


def test_a_stream_that_is_being_captured(fake_gpus):  # noqa: F811
    """The batch is refused as a whole, and nothing of it is sent."""

    def body(rank):
        arrays = [rank.array(np.ones(3, np.float32)) for _ in range(2)]
        captured = fake_gpus.stream(0)
        captured.capture()
        requests = [
            rank.request(ALLREDUCE, f"x{i}", array, array, stream=stream, op=SUM)
            for i, (array, stream) in enumerate(zip(arrays, (rank.stream, captured), strict=True))
        ]
        keys = ("kind", "name", "dtype", "shape", "input_ptr", "output_ptr", "op")
        with pytest.raises(UnsupportedError, match=r"'x1' .*being captured into a CUDA graph"):
            rank.engine.submit(
                [(*[r[key] for key in keys], 0, 0, 1.0, 1.0, "", 0, 0, (), 0, 0, 0, 0, r["stream"]) for r in requests]
            )
        captured.capture(0)
        assert rank.counters()["submitted"] == 0
        np.testing.assert_array_equal(rank.allreduce("x0", np.ones(3, np.float32)), 1)

    run_gpu_ranks(fake_gpus, 1, body)
