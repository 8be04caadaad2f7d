"""What the torch backend says of tensors: used in place, copied or refused."""

import copy
import ctypes
import pickle
import subprocess
import sys

import pytest

from hvdlite.backends import backend_of
from hvdlite.backends.base import CHANNELS_LAST, CHANNELS_LAST_3D, ROW_MAJOR
from hvdlite.dtypes import DType
from hvdlite.errors import InvalidArgumentError, UnsupportedError

torch = pytest.importorskip("torch")
BACKEND = backend_of(torch.zeros(1))


def no_memory(nbytes):
    raise AssertionError("small outputs are torch's own")


def test_tensors_and_parameters_have_one_backend():
    assert BACKEND.name == "torch"
    assert backend_of(torch.nn.Parameter(torch.zeros(1))) is BACKEND
    assert backend_of([torch.zeros(1)]).name == "numpy"


def test_torch_is_not_imported_for_other_values():
    program = "import sys; from hvdlite.backends import backend_of; backend_of([1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("dtype", [d for d in DType if hasattr(torch, d.label)], ids=lambda d: d.label)
def test_contiguous_tensors_are_used_as_they_are(dtype):
    tensor = torch.zeros(2, 3, dtype=getattr(torch, dtype.label))
    exported = BACKEND.export(BACKEND.adopt(tensor), any_layout=True)
    assert exported.pointer == tensor.data_ptr()
    assert exported.dtype == dtype
    assert exported.shape == (2, 3)
    assert exported.layout == ROW_MAJOR
    out, pointer = BACKEND.empty_like(exported.owner, no_memory)
    assert (out.dtype, out.shape, out.data_ptr()) == (tensor.dtype, tensor.shape, pointer)
    memory = bytearray(6 * dtype.itemsize)
    wrapped = BACKEND.wrap(memoryview(memory), (2, 3), tensor)
    assert (wrapped.dtype, wrapped.shape) == (tensor.dtype, tensor.shape)
    wrapped.fill_(1)
    assert any(memory)


def test_zero_dimensional_and_empty_tensors():
    assert BACKEND.export(torch.tensor(1.0), any_layout=True).shape == ()
    assert BACKEND.export(torch.zeros(0, 3), any_layout=True).shape == (0, 3)
    assert BACKEND.wrap(memoryview(b""), (0, 3), torch.zeros(1)).shape == (0, 3)


@pytest.mark.parametrize(
    ("shape", "memory_format", "layout"),
    [((2, 3, 4, 5), torch.channels_last, CHANNELS_LAST), ((2, 3, 4, 5, 6), torch.channels_last_3d, CHANNELS_LAST_3D)],
)
def test_channels_last_is_dense(shape, memory_format, layout):
    tensor = torch.rand(shape).to(memory_format=memory_format)
    exported = BACKEND.export(tensor, any_layout=True)
    assert (exported.pointer, exported.layout, exported.shape) == (tensor.data_ptr(), layout, shape)
    assert BACKEND.empty_like(exported.owner, no_memory)[0].stride() == tensor.stride()
    copied = BACKEND.export(tensor, any_layout=False)
    assert copied.pointer != tensor.data_ptr()
    assert copied.owner.is_contiguous()
    assert torch.equal(copied.owner, tensor)


@pytest.mark.parametrize("make", [lambda: torch.rand(4, 6).t(), lambda: torch.rand(8)[::2], lambda: torch.rand(3).expand(2, 3)])
def test_other_layouts_are_copied(make):
    tensor = make()
    exported = BACKEND.export(tensor, any_layout=True)
    assert exported.owner.is_contiguous()
    assert torch.equal(exported.owner, tensor)


def test_lazily_negated_tensors_are_copied():
    tensor = torch.rand(4, dtype=torch.complex64).conj().imag
    assert tensor.is_neg()
    exported = BACKEND.export(tensor, any_layout=True)
    assert not exported.owner.is_neg()
    assert torch.equal(exported.owner, tensor)


def test_a_leaf_that_requires_grad_can_be_written():
    leaf = torch.zeros(3, 2, requires_grad=True)
    adopted = BACKEND.adopt_writable(leaf)
    assert not adopted.requires_grad
    assert adopted.data_ptr() == leaf.data_ptr()
    BACKEND.copy_back(torch.ones(3, 2), adopted)
    assert leaf.sum() == 6


def test_autograd_notices_a_write():
    leaf = torch.ones(3, requires_grad=True)
    saved = leaf * 2
    product = saved * saved
    BACKEND.mark_written(BACKEND.adopt_writable(saved))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_inference_tensors_can_be_written():
    with torch.inference_mode():
        tensor = torch.zeros(3)
    BACKEND.mark_written(BACKEND.adopt_writable(tensor))


def test_sparse_and_device_tensors_are_refused():
    with pytest.raises(UnsupportedError, match=r"layout torch\.sparse_coo cannot be sent.*to_dense"):
        BACKEND.adopt(torch.eye(2).to_sparse())
    with pytest.raises(UnsupportedError, match="this torch tensor is on meta"):
        BACKEND.adopt(torch.zeros(1, device="meta"))


def test_other_dtypes_are_refused():
    with pytest.raises(InvalidArgumentError, match="torch tensor of dtype float8_e5m2 cannot be sent"):
        BACKEND.export(torch.zeros(1, dtype=torch.float8_e5m2), any_layout=True)


def test_integers_and_casts():
    assert BACKEND.integers((1, 2)).dtype is torch.int32
    assert BACKEND.cast(torch.ones(1), "bfloat16").dtype is torch.bfloat16
    assert BACKEND.dtype_name(torch.ones(1)) == "float32"


LARGE = {
    "flat": lambda: torch.rand(1 << 20),
    "channels_last": lambda: torch.rand(32, 16, 32, 32).to(memory_format=torch.channels_last),
    "bfloat16": lambda: torch.rand(1 << 10, 1 << 10).to(torch.bfloat16),
    "bool": lambda: torch.rand(1 << 20) > 0.5,
}


@pytest.mark.parametrize("name", LARGE)
def test_large_outputs_are_ordinary_tensors_over_the_memory_given(name):
    like = LARGE[name]()
    memory = bytearray(like.nbytes)
    out, pointer = BACKEND.empty_like(like, lambda nbytes: memoryview(memory)[:nbytes])
    assert pointer == out.data_ptr() == ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert (out.shape, out.dtype, out.stride()) == (like.shape, like.dtype, like.stride())
    assert not out._is_view()
    out.copy_(like)
    assert torch.equal(out, like)
    assert any(memory)
    assert torch.equal(pickle.loads(pickle.dumps(out)), like)
    assert torch.equal(copy.deepcopy(out), like)
    if out.is_floating_point():
        out.requires_grad_(True)
        (out * 2).sum().backward()
        assert (out.grad == 2).all()
        changed = out.detach()
        changed.mul_(torch.ones((), requires_grad=True))
        assert changed.requires_grad
    out.detach().share_memory_()


def test_a_subclass_keeps_its_class():
    class Tagged(torch.Tensor):
        pass

    like = torch.rand(1 << 20).as_subclass(Tagged)
    assert type(BACKEND.empty_like(like, no_memory)[0]) is Tagged


class OnGpu(torch.Tensor):
    """A host tensor that says it is on the second GPU."""

    is_cpu = property(lambda self: False)
    is_cuda = property(lambda self: True)
    device = property(lambda self: torch.device("cuda", 1))


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(BACKEND, "stream_of", lambda gpu: 100 + gpu)
    return torch.rand(2, 3).as_subclass(OnGpu)


def test_tensors_on_a_gpu_are_used_there_in_the_current_stream(on_gpu, monkeypatch):
    backend = backend_of(on_gpu)
    assert backend is BACKEND
    exported = backend.export(backend.adopt_writable(on_gpu), any_layout=True)
    assert (exported.pointer, exported.device, exported.stream) == (on_gpu.data_ptr(), 1, 101)
    monkeypatch.setattr(backend, "stream_of", lambda gpu: 200 + gpu)
    assert backend.stream_now(exported) == 201


def test_results_on_a_gpu_lie_in_memory_of_torchs(on_gpu):
    large = torch.zeros(1 << 20).as_subclass(OnGpu)
    out, pointer = BACKEND.empty_like(large, no_memory)
    assert pointer == out.data_ptr() != large.data_ptr()


def test_gpus_of_others_are_refused(on_gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(UnsupportedError, match=r"on cuda:1, and hvdlite sends tensors in host memory and on NVIDIA GPUs only"):
        BACKEND.adopt(on_gpu)
