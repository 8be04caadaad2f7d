"""Launches of the fusion kernels on fake GPUs: conversions, flags of what is not finite, lists of tensors and their memory."""

import numpy as np
import pytest
from support.fake_gpu import fake_gpus  # noqa: F401
from support.fusion import Conversion, convert, opened, uploads
from support.seeds import seeds

from hvdlite import _engine, errors
from hvdlite.bench.fusion import Fusion, Move
from hvdlite.dtypes import DType

errors.install(_engine.set_error_classes)

SAME = (DType.FLOAT32, DType.FLOAT32)


class Tensors:
    """Float32 tensors on the GPU, one after the other, and a buffer with a gap after each."""

    def __init__(self, fusion: Fusion, number: int, seed: int = 0) -> None:
        draw = np.random.default_rng([number, seed])
        sizes = draw.integers(0, 2000, number).tolist()
        self.fusion = fusion
        self.values = [draw.standard_normal(size).astype(np.float32) for size in sizes]
        starts = np.cumsum([0, *sizes]).tolist()
        self.memory = fusion.memory(4 * starts[-1])
        self.everything = np.concatenate(self.values)
        fusion.copy(self.memory, self.everything.ctypes.data, self.everything.nbytes)
        self.tensors = [self.memory + 4 * start for start in starts[:-1]]
        self.places = [(start + i, size) for i, (start, size) in enumerate(zip(starts, sizes, strict=False))]
        self.elements = starts[-1] + number
        self.buffer = fusion.memory(4 * self.elements)

    def move(self, **others) -> Move:
        source, target = others.pop("types", SAME)
        return Move(self.tensors, self.places, self.buffer, source, target, **others)

    def read(self, address: int, count: int, dtype: type) -> np.ndarray:
        values = np.zeros(count, dtype)
        self.fusion.copy(values.ctypes.data, address, values.nbytes)
        return values


@pytest.mark.parametrize("number", [1, 100, 400])
@pytest.mark.parametrize("seed", seeds([1, 2]))
def test_tensors_travel_as_float16_and_back(fake_gpus, number, seed):  # noqa: F811
    """The streams of the fake take their time, in an order that only events decide."""
    fake_gpus.set(seed=seed)
    with opened() as fusion:
        made = Tensors(fusion, number, seed)
        out, back = (DType.FLOAT32, DType.FLOAT16), (DType.FLOAT16, DType.FLOAT32)
        fusion.run(made.move(types=out, factor=0.5))
        packed = made.read(made.buffer, made.elements, np.float16)
        for (offset, count), values in zip(made.places, made.values, strict=True):
            assert packed[offset : offset + count].tobytes() == convert(values, Conversion(*out, 0.5)).tobytes()
        fusion.run(made.move(types=back, factor=2.0, unpack=True))
        wanted = (made.everything * np.float32(0.5)).astype(np.float16).astype(np.float32) * 2
        assert np.array_equal(made.read(made.memory, made.everything.size, np.float32), wanted)


def test_not_finite_values_are_flagged_on_the_gpu(fake_gpus):  # noqa: F811
    with opened() as fusion:
        for number in (150, 250):
            made = Tensors(fusion, number)
            bad = next(i for i, values in enumerate(made.values) if values.size > 10)
            nan = np.array([np.nan], np.float32)
            fusion.copy(made.tensors[bad] + 4 * 7, nan.ctypes.data, 4)
            flags, zeros = fusion.memory(4 * number), np.zeros(number, np.int32)
            fusion.copy(flags, zeros.ctypes.data, zeros.nbytes)
            fusion.run(made.move(nonfinite=flags))
            assert np.flatnonzero(made.read(flags, number, np.int32)).tolist() == [bad]


def test_a_list_of_tensors_is_uploaded_once(fake_gpus):  # noqa: F811
    with opened() as fusion:
        few, many, others = Tensors(fusion, 192), Tensors(fusion, 193), Tensors(fusion, 500)
        fusion.run(few.move(), launches=3)
        assert uploads(fusion) == 0
        for _ in range(3):
            fusion.run(many.move(), launches=2)
            fusion.run(others.move())
        assert uploads(fusion) == 2
        fusion.run(others.move(factor=2.0))  # a copy's units are bytes, not numbers
        fusion.run(others.move(types=(DType.FLOAT32, DType.BFLOAT16)))
        assert uploads(fusion) == 3
        fusion.run(others.move(unpack=True))
        assert uploads(fusion) == 4
        fusion.run(Move(others.tensors[1:], others.places[1:], others.buffer, *SAME))
        assert uploads(fusion) == 5
        fusion.run(others.move())
        assert uploads(fusion) == 5
        count = others.values[0].size
        packed, unpacked = (others.read(place, count, np.uint32) for place in (others.buffer, others.tensors[0]))
        assert np.array_equal(packed, unpacked)


def test_old_lists_make_room_for_new_ones(fake_gpus):  # noqa: F811
    """Each of more lists than are kept; the memory of a list in use is not written to."""
    with opened() as fusion:
        made = Tensors(fusion, 260)
        for first in range(66):
            places = made.places[first : first + 193]
            fusion.run(Move(made.tensors[first : first + 193], places, made.buffer, *SAME))
        assert uploads(fusion) == 66
        fusion.run(Move(made.tensors[65 : 65 + 193], made.places[65 : 65 + 193], made.buffer, *SAME))
        assert uploads(fusion) == 66
        fusion.run(Move(made.tensors[:193], made.places[:193], made.buffer, *SAME))
        assert uploads(fusion) == 67
        packed = made.read(made.buffer, made.elements, np.float32)
        for (offset, count), values in list(zip(made.places, made.values, strict=True))[: 65 + 193]:
            assert np.array_equal(packed[offset : offset + count], values)


def test_a_tensor_between_its_elements_is_copied_but_not_scaled(fake_gpus):  # noqa: F811
    with opened() as fusion:
        tensor, buffer = fusion.memory(100), fusion.memory(100)
        values = np.arange(100, dtype=np.uint8)
        fusion.copy(tensor, values.ctypes.data, 100)
        move = Move([tensor + 2], [(0, 10)], buffer, *SAME)
        fusion.run(move)
        packed = np.zeros(40, np.uint8)
        fusion.copy(packed.ctypes.data, buffer, 40)
        assert np.array_equal(packed, values[2:42])
        with pytest.raises(errors.InvalidArgumentError, match=r"lies at 0x[0-9a-f]+, which is no multiple of the 4 bytes"):
            fusion.run(Move([tensor + 2], [(0, 10)], buffer, *SAME, factor=2.0))


def test_a_failure_at_any_call_is_an_error_and_leaves_nothing(fake_gpus):  # noqa: F811
    def everything():
        with opened() as fusion:
            made = Tensors(fusion, 300)
            fusion.run(made.move())
            fusion.run(made.move())

    everything()
    functions = {name: count for name, count in fake_gpus.called().items() if name.startswith("cu")}
    quiet = {"cuGetErrorName", "cuGetErrorString", "cuModuleUnload", "cuEventDestroy_v2", "cuCtxPopCurrent_v2"}
    tried = ("cuModuleGetFunction", "cuLaunchKernel", "cuMemAlloc", "cuMemHostAlloc", "cuEventRecord", "cuMemcpyAsync")
    assert set(tried) <= set(functions) - quiet, functions
    for name in tried:
        for nth in (1, functions[name]):
            fake_gpus.fail(name, nth, 2)
            with pytest.raises(errors.SystemFailure, match=r"out of memory|OUT_OF_MEMORY"):
                everything()
            fake_gpus.fail(name, 0, 0)
    everything()
