"""What the backends say of arrays in the memory of GPUs: CuPy's (a stand-in) and those with __cuda_array_interface__."""

import gc
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from support import driver_arrays, fake_cupy, fake_gpu

from hvdlite import backends
from hvdlite.backends import DeviceArray, backend_of
from hvdlite.backends.base import ROW_MAJOR, SOME_GPU
from hvdlite.dtypes import DType, elements_of
from hvdlite.errors import InvalidArgumentError, UnsupportedError

if fake_gpu.missing():
    pytest.skip(fake_gpu.missing(), allow_module_level=True)


@pytest.fixture(autouse=True)
def own_driver(monkeypatch):
    monkeypatch.setenv("HVDLITE_CUDA_LIBRARY", fake_gpu.libraries()["cuda"])
    driver_arrays.driver.cache_clear()
    yield
    gc.collect()
    driver_arrays.driver.cache_clear()


@pytest.fixture
def cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(backends, "_by_type", {})
    yield fake_cupy.install()
    gc.collect()
    fake_cupy.free_all_blocks()


def no_memory(nbytes):
    raise AssertionError("CuPy's arrays lie in CuPy's own memory")


# --- CuPy ----------------------------------------------------------------------------------------------------------


def test_cupy_is_not_imported_for_other_values():
    program = "import sys; from hvdlite.backends import backend_of; backend_of([1]); assert 'cupy' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "bool", "complex64"])
def test_contiguous_arrays_of_cupy_are_used_as_they_are(cupy, device, dtype):
    with cupy.cuda.Device(device):
        array = cupy.asarray(np.ones((2, 3), dtype))
    backend = backend_of(array)
    assert backend.name == "cupy"
    assert backend_of(array.T) is backend
    exported = backend.export(backend.adopt(array), any_layout=True)
    assert exported == (array.data.ptr, (2, 3), getattr(DType, dtype.upper()), device, ROW_MAJOR, array, 0)
    out, pointer = backend.empty_like(array, no_memory)
    assert type(out) is cupy.ndarray
    assert (out.shape, out.dtype, out.device.id, out.data.ptr) == ((2, 3), dtype, device, pointer)
    assert pointer != array.data.ptr
    other, pointer = backend.empty_on_gpu((5, 3), array, no_memory)
    assert (other.shape, other.dtype, other.device.id, other.data.ptr) == ((5, 3), dtype, device, pointer)


def test_the_stream_of_cupy_is_the_current_one_of_the_arrays_gpu_and_lives_on(cupy):
    with cupy.cuda.Device(1):
        array = cupy.asarray(np.ones(3))
        stream = cupy.cuda.Stream()
    with stream:
        exported = backend_of(array).export(array, any_layout=True)
        assert exported.stream == stream.ptr != 0
        assert backend_of(array).stream_now(exported) == stream.ptr
    assert backend_of(array).stream_now(exported) == 0
    handle = int(exported.stream)
    del stream
    gc.collect()
    assert exported.stream.owner.ptr == handle  # the object, which would have destroyed the stream


def test_other_layouts_of_cupy_are_copied_and_written_back(cupy):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = cupy.asarray(values).T
    backend = backend_of(array)
    exported = backend.export(backend.adopt_writable(array), any_layout=True)
    assert exported.owner is not array
    assert exported.shape == (3, 2)
    assert exported.owner.flags.c_contiguous
    np.testing.assert_array_equal(cupy.asnumpy(exported.owner), values.T)
    backend.copy_back(cupy.asarray(-values.T), array)
    np.testing.assert_array_equal(cupy.asnumpy(array), -values.T)


def test_arrays_of_cupy_whose_elements_are_one_are_refused_in_place(cupy):
    array = cupy.broadcast_to(cupy.asarray(np.ones(3)), (2, 3))
    with pytest.raises(InvalidArgumentError, match=r"broadcast array \(shape \[2, 3\], strides \[0, 8\].*pass its \.copy\(\)"):
        backend_of(array).adopt_writable(array)


def test_arrays_of_cupy_are_converted_and_named(cupy):
    array = cupy.asarray(np.arange(3, dtype=np.float32))
    backend = backend_of(array)
    assert backend.dtype_name(array) == "float32"
    assert backend.cast(array, "float16").dtype == "float16"
    assert backend.integers([1, 2]).tolist() == [1, 2]
    with pytest.raises(InvalidArgumentError, match=r"a CuPy array of dtype (complex256|clongdouble) cannot be sent"):
        backend.export(cupy.asarray(np.ones(1, np.clongdouble)), any_layout=True)


@pytest.mark.parametrize("name", ["float8_e5m2", "int4"])
def test_elements_of_other_dtypes_can_be_moved(cupy, name):
    array = cupy.asarray(np.zeros(3, getattr(ml_dtypes, name)))
    backend = backend_of(array)
    for _ in range(2):
        exported = backend.export(array, any_layout=True, any_dtype=True)
        assert (exported.dtype, exported.layout) == elements_of(name, 1, any_dtype=True, what="array")
        with pytest.raises(InvalidArgumentError, match=f"a CuPy array of dtype {name} cannot be sent"):
            backend.export(array, any_layout=True)


# --- __cuda_array_interface__ ----------------------------------------------------------------------------------------


class Interface:
    """An object with nothing but the interface."""

    def __init__(self, **entries):
        self.entries = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False), "version": 3} | entries

    @property
    def __cuda_array_interface__(self):
        return self.entries


@pytest.mark.parametrize(
    ("entries", "stream"),
    [({}, 0), ({"stream": None}, 0), ({"stream": 1}, 0), ({"stream": 2}, 2), ({"stream": 77}, 77), ({"version": 2}, 0)],
)
@pytest.mark.parametrize("strides", [None, (12, 4)])
def test_arrays_are_described_by_their_interface(entries, stream, strides):
    value = Interface(strides=strides, **entries)
    backend = backend_of(value)
    assert backend.name == "CUDA array"
    adopted = backend.adopt_writable(value)
    exported = backend.export(adopted, any_layout=True)
    assert exported == (4096, (2, 3), DType.FLOAT32, SOME_GPU, ROW_MAJOR, adopted, stream)
    assert backend.stream_now(exported) == stream


def test_a_view_keeps_its_object_alive():
    value = driver_arrays.DriverArray.of(np.arange(3, dtype=np.float32))
    address = value.address
    adopted = backend_of(value).adopt(value)
    del value
    gc.collect()
    np.testing.assert_array_equal(driver_arrays.read(adopted), [0, 1, 2])
    assert adopted.pointer == address


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        (
            {"strides": (4, 8)},
            r"Interface of shape \[2, 3\] is not C-contiguous \(its strides are \[4, 8\] bytes\): pass a contig",
        ),
        ({"mask": Interface()}, "has a mask, which would be lost"),
        ({"typestr": ">f4"}, r"\(>f4\) do not have the machine's byte order"),
        ({"typestr": "<V2"}, r"a CUDA array of dtype void16 cannot be sent"),
    ],
)
def test_arrays_that_cannot_be_sent_say_why(entries, text):
    value = Interface(**entries)
    backend = backend_of(value)
    with pytest.raises(InvalidArgumentError, match=text):
        backend.export(backend.adopt(value), any_layout=True)


@pytest.mark.parametrize("strides", [(400, 4), (0, 4)])
def test_strides_of_extents_that_are_one_do_not_matter(strides):
    value = Interface(shape=(1, 3), strides=strides)
    assert backend_of(value).adopt(value).shape == (1, 3)
    empty = Interface(shape=(0, 3), strides=(4, 8), data=(0, False))
    assert backend_of(empty).export(backend_of(empty).adopt(empty), any_layout=True).pointer == 0


def test_read_only_arrays_are_refused_in_place():
    value = Interface(data=(4096, True))
    assert backend_of(value).adopt(value).readonly
    with pytest.raises(InvalidArgumentError, match="read-only array"):
        backend_of(value).adopt_writable(value)


def test_conversions_are_refused():
    adopted = backend_of(Interface()).adopt(Interface())
    with pytest.raises(UnsupportedError, match="from float32 to float16: convert it yourself"):
        backend_of(adopted).cast(adopted, "float16")


class Memory:
    """Stands for memory of the engine."""

    def __init__(self, nbytes):
        self.nbytes = nbytes
        self.address = 8192


def test_results_are_arrays_with_an_interface_of_their_own():
    adopted = backend_of(Interface(stream=77)).adopt(Interface(stream=77))
    out, pointer = backend_of(adopted).empty_on_gpu((4, 3), adopted, Memory)
    assert type(out) is DeviceArray
    assert repr(out) == "<hvdlite.DeviceArray float32 [4, 3] in CUDA memory>"
    assert (pointer, out.nbytes) == (8192, 48)
    described = {"shape": (4, 3), "typestr": "<f4", "data": (8192, False), "strides": None, "stream": 77, "version": 3}
    assert out.__cuda_array_interface__ == described
    assert backend_of(out).name == "CUDA array"
    assert backend_of(out).adopt(out) is out
    nothing, pointer = backend_of(adopted).empty_on_gpu((0, 3), adopted, Memory)
    assert (pointer, nothing.shape) == (0, (0, 3))


def test_the_default_stream_has_another_number_in_the_interface():
    adopted = backend_of(Interface()).adopt(Interface())
    assert backend_of(adopted).empty_like(adopted, Memory)[0].__cuda_array_interface__["stream"] == 1
