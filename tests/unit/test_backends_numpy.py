"""What the NumPy backend says of arrays: used in place, copied, adopted or refused."""

import ctypes

import numpy as np
import pytest

from hvdlite.backends import backend_of
from hvdlite.backends.base import CPU, ROW_MAJOR
from hvdlite.backends.numpy import BACKEND
from hvdlite.dtypes import DType, numpy_dtype
from hvdlite.errors import InvalidArgumentError, UnsupportedError


def address(array):
    return array.ctypes.data


def test_a_contiguous_array_is_used_as_it_is():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    exported = BACKEND.export(BACKEND.adopt(array), any_layout=True)
    assert exported.owner is array
    assert exported.pointer is array
    assert (exported.shape, exported.dtype) == ((2, 3), DType.INT16)
    assert (exported.device, exported.layout) == (CPU, ROW_MAJOR)


def unaligned(values):
    memory = np.zeros(values.nbytes + 1, np.uint8)
    view = memory[1:].view(values.dtype)
    view[:] = values
    return view


OTHER_LAYOUTS = {
    "fortran": lambda: np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": lambda: np.arange(12.0)[::2],
    "reversed": lambda: np.arange(6.0)[::-1],
    "expanded": lambda: np.broadcast_to(np.arange(3.0), (2, 3)),
    "big-endian": lambda: np.arange(6.0).astype(">f8"),
    "unaligned": lambda: unaligned(np.arange(6.0)),
}


@pytest.mark.parametrize("layout", OTHER_LAYOUTS)
def test_other_layouts_are_copied(layout):
    array = OTHER_LAYOUTS[layout]()
    exported = BACKEND.export(BACKEND.adopt(array), any_layout=True)
    assert exported.owner is not array
    assert exported.owner.flags.c_contiguous
    assert exported.owner.flags.aligned
    assert exported.owner.dtype.isnative
    assert exported.shape == array.shape
    np.testing.assert_array_equal(exported.owner, array)


@pytest.mark.parametrize("layout", [name for name in OTHER_LAYOUTS if name != "expanded"])
def test_a_copy_goes_back(layout):
    array = OTHER_LAYOUTS[layout]()
    dense = BACKEND.export(BACKEND.adopt_writable(array), any_layout=True).owner
    dense += 1
    wanted = array + 1
    BACKEND.copy_back(dense, array)
    np.testing.assert_array_equal(array, wanted)


def test_zero_dimensions_stay():
    for array in (np.array(3.0), np.array(3.0).astype(">f8")):
        assert BACKEND.export(BACKEND.adopt(array), any_layout=True).owner.shape == ()


@pytest.mark.parametrize(
    ("value", "shape", "dtype"),
    [
        (3.0, (), "float64"),
        (True, (), "bool"),
        ([1, 2], (2,), "int64"),
        (np.float16(1), (), "float16"),
        ([], (0,), "float64"),
    ],
)
def test_scalars_and_lists_are_adopted(value, shape, dtype):
    adopted = backend_of(value).adopt(value)
    assert (adopted.shape, adopted.dtype) == (shape, dtype)


class Dlpack:
    """Speaks DLPack only."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


class ArrayInterface:
    """Speaks NumPy's array interface only."""

    def __init__(self, array):
        self.array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("wrapper", [Dlpack, ArrayInterface])
def test_foreign_memory_is_viewed(wrapper):
    array = np.arange(4, dtype=np.float32)
    value = wrapper(array)
    adopted = backend_of(value).adopt(value)
    assert address(adopted) == address(array)


def test_a_ctypes_array_is_viewed():
    value = (ctypes.c_float * 3)(1, 2, 3)
    assert address(backend_of(value).adopt(value)) == ctypes.addressof(value)


class OnCuda:
    """Looks like a CuPy array."""

    def __init__(self):
        self.__cuda_array_interface__ = {"shape": (1,), "typestr": "<f4", "data": (0, False), "version": 3}


@pytest.mark.parametrize(
    ("device", "advice"), [(2, r"pass torch\.from_dlpack\(x\) or cupy\.from_dlpack\(x\)"), (10, "copy it to host memory")]
)
@pytest.mark.parametrize("adopt", [BACKEND.adopt, BACKEND.adopt_writable])
def test_device_memory_that_only_dlpack_tells_of_is_refused_and_says_what_to_do(adopt, device, advice):
    value = Dlpack(np.zeros(1), device=(device, 0))
    assert backend_of(value) is BACKEND
    with pytest.raises(UnsupportedError, match=rf"Dlpack is in the memory of a device \(.* type {device}\); .*{advice}"):
        adopt(value)


def test_what_says_that_it_is_in_cuda_memory_has_another_backend():
    assert backend_of(OnCuda()).name == "CUDA array"


def test_of_a_type_that_may_be_in_cuda_memory_each_value_is_asked():
    class Sometimes:
        def __init__(self, where):
            self.where = where

        @property
        def __cuda_array_interface__(self):
            if self.where == "host":
                raise AttributeError
            return {}

    assert backend_of(Sometimes("host")) is BACKEND
    assert backend_of(Sometimes("gpu")).name == "CUDA array"
    assert backend_of(Sometimes("host")) is BACKEND


def test_none_is_refused():
    with pytest.raises(InvalidArgumentError, match="None is no tensor: pass a tensor on every rank, or send any object with"):
        BACKEND.adopt(None)


def test_masked_arrays_are_refused():
    with pytest.raises(InvalidArgumentError, match="masked array"):
        BACKEND.adopt(np.ma.masked_array([1.0], [True]))


def test_read_only_arrays_are_refused_in_place():
    array = np.zeros(3)
    array.flags.writeable = False
    assert BACKEND.adopt(array) is array
    with pytest.raises(InvalidArgumentError, match="read-only"):
        BACKEND.adopt_writable(array)


def test_arrays_whose_elements_share_memory_are_refused_in_place():
    array = np.lib.stride_tricks.as_strided(np.zeros(2), (3, 2), (0, 8))
    with pytest.raises(InvalidArgumentError, match=r"write to a broadcast array \(shape \[3, 2\], .*pass its \.copy\(\)"):
        BACKEND.adopt_writable(array)
    assert BACKEND.adopt_writable(array[:1]).shape == (1, 2)
    assert BACKEND.adopt_writable(array[:, :0]).shape == (3, 0)


@pytest.mark.parametrize("value", [3.0, [1.0], np.float32(1), Dlpack(np.zeros(1))])
def test_only_arrays_are_written_in_place(value):
    with pytest.raises(InvalidArgumentError, match="in-place operation needs a NumPy array"):
        BACKEND.adopt_writable(value)


@pytest.mark.parametrize("value", [np.zeros(1, np.longdouble), np.array(["a"]), object(), np.zeros(1, "M8[s]")])
def test_other_dtypes_are_refused(value):
    with pytest.raises(InvalidArgumentError, match="hvdlite knows uint8"):
        BACKEND.export(BACKEND.adopt(value), any_layout=True)


def test_memory_that_another_library_does_not_give_is_refused():
    """As JAX does for an array on several devices."""

    class Sharded:
        def __dlpack__(self, **options):
            raise BufferError("only supported for unsharded arrays")

        def __dlpack_device__(self):
            raise BufferError("only supported for unsharded arrays")

    class Reluctant(Sharded):
        def __dlpack_device__(self):
            return (1, 0)

    for value in (Sharded(), Reluctant()):
        with pytest.raises(InvalidArgumentError, match=r"cannot convert a .* to a tensor: only supported for unsharded arrays"):
            BACKEND.adopt(value)


def test_ragged_lists_are_refused():
    with pytest.raises(InvalidArgumentError, match="hvdlite cannot convert a list to a tensor"):
        BACKEND.adopt([[1], [1, 2]])


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BFLOAT16], ids=lambda d: d.label)
def test_engine_memory_is_wrapped_without_a_copy(dtype):
    like = np.zeros(1, numpy_dtype(dtype))
    memory = bytearray(6 * dtype.itemsize)
    wrapped = BACKEND.wrap(memoryview(memory), (2, 3), like)
    assert (wrapped.shape, wrapped.dtype) == ((2, 3), like.dtype)
    assert wrapped.flags.writeable
    wrapped[:] = 1
    assert any(memory)


def test_empty_engine_memory():
    assert BACKEND.wrap(memoryview(b""), (0, 3), np.zeros(1)).shape == (0, 3)


def test_bfloat16_arrays():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(4).astype(ml_dtypes.bfloat16)
    exported = BACKEND.export(BACKEND.adopt(array), any_layout=True)
    assert exported.owner is array
    assert exported.dtype == DType.BFLOAT16
    assert BACKEND.dtype_name(array) == "bfloat16"
    assert BACKEND.cast(np.ones(2), "bfloat16").dtype == array.dtype
    strided = BACKEND.export(array[::2], any_layout=True)
    assert strided.owner.dtype == array.dtype
    assert BACKEND.wrap(memoryview(bytearray(4)), (2,), array).dtype == array.dtype
