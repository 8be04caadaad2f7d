"""The kinds of tensors that tests of GPU tensors use: how each is made, and how its values are read."""

import importlib.util
import os
from typing import Any

import ml_dtypes
import numpy as np
from mpi4py import MPI
from support import driver_arrays, fake_cupy, fake_torch
from support.gpu import MODE, count_gpus

LOCAL = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
WHERE = os.environ.get(MODE, "host")


def _number_of_gpu() -> int:
    """This rank's: one for each rank, or shared where there are too few. The fakes have one for each."""
    return LOCAL.rank % count_gpus()[0] if WHERE == "real" else LOCAL.rank


GPU = _number_of_gpu()


class Kind:
    """One kind.

    Attributes:
        name: of the kind.
        door: the module whose collectives take such tensors.
    """

    name = ""
    door: Any = None

    def has(self, dtype: Any) -> bool:
        """Are there tensors of this element type (NumPy's)?"""
        return True

    def tensor(self, array: Any) -> Any:
        """A copy of a NumPy array in memory of this rank's GPU, in the order of the current stream."""
        raise NotImplementedError

    def host(self, tensor: Any) -> Any:
        """A tensor's values as a NumPy array, once the current stream has come so far. Other values as they are."""
        raise NotImplementedError

    def gpu_of(self, tensor: Any) -> int:
        """The number of the GPU that has the tensor; -1: none."""
        raise NotImplementedError

    def tail(self, tensor: Any, start: int) -> Any:
        """A vector without its first elements, in the same memory."""
        return tensor[start:]


class Plain(Kind):
    """Arrays that only have __cuda_array_interface__."""

    name = "plain"

    def __init__(self) -> None:
        import hvdlite

        self.door = hvdlite

    def has(self, dtype: Any) -> bool:
        return np.dtype(dtype) != ml_dtypes.bfloat16

    def tensor(self, array: Any) -> Any:
        return driver_arrays.DriverArray.of(array, device=GPU)

    def host(self, tensor: Any) -> Any:
        return driver_arrays.read(tensor) if hasattr(tensor, "__cuda_array_interface__") else np.asarray(tensor)

    def gpu_of(self, tensor: Any) -> int:
        return driver_arrays.gpu_of(tensor)

    def tail(self, tensor: Any, start: int) -> Any:
        return tensor.tail(start)


class Cupy(Kind):
    """CuPy's arrays."""

    name = "cupy"

    def __init__(self) -> None:
        import cupy

        import hvdlite

        self.door, self._cupy = hvdlite, cupy
        cupy.cuda.Device(GPU).use()

    def has(self, dtype: Any) -> bool:
        return np.dtype(dtype) != ml_dtypes.bfloat16

    def tensor(self, array: Any) -> Any:
        return self._cupy.asarray(array)

    def host(self, tensor: Any) -> Any:
        return self._cupy.asnumpy(tensor)

    def gpu_of(self, tensor: Any) -> int:
        return int(tensor.device.id) if isinstance(tensor, self._cupy.ndarray) else -1


class Torch(Kind):
    """torch's tensors: on the GPU, or on the host where the tests are tested."""

    name = "torch"

    def __init__(self) -> None:
        import torch

        import hvdlite.torch

        self.door, self._torch = hvdlite.torch, torch
        self.device = torch.device(f"cuda:{GPU}" if WHERE == "real" else "cpu")
        if WHERE == "real":
            torch.cuda.set_device(self.device)
        elif WHERE == "fakes":
            fake_torch.install(GPU)

    def has(self, dtype: Any) -> bool:
        return hasattr(self._torch, np.dtype(dtype).name)

    def tensor(self, array: Any) -> Any:
        source = np.array(array, order="C")
        if source.dtype == ml_dtypes.bfloat16:
            return self._torch.from_numpy(source.view(np.int16)).view(self._torch.bfloat16).to(self.device)
        return self._torch.from_numpy(source).to(self.device)

    def host(self, tensor: Any) -> Any:
        if not isinstance(tensor, self._torch.Tensor):
            return np.asarray(tensor)
        tensor = tensor.detach().resolve_conj().cpu()
        if tensor.dtype is self._torch.bfloat16:
            return tensor.contiguous().view(self._torch.int16).numpy().view(ml_dtypes.bfloat16)
        return tensor.numpy()

    def gpu_of(self, tensor: Any) -> int:
        if WHERE == "fakes":
            return GPU
        return int(tensor.device.index) if tensor.is_cuda else -1


def _torch() -> Kind | str:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if WHERE == "real" and not torch.cuda.is_available():
        return "this torch cannot use the GPU"
    return Torch()


def _cupy() -> Kind | str:
    if WHERE == "fakes":
        fake_cupy.install()
        return Cupy()
    if WHERE != "real":
        return "CuPy needs a GPU"
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    return Cupy() if cupy.is_available() else "this CuPy cannot use the GPU"


KINDS: dict[str, Kind | str] = {
    "torch": _torch(),
    "cupy": _cupy(),
    "plain": "they are not in host memory" if WHERE == "host" else Plain(),
}
TORCH = KINDS["torch"] if isinstance(KINDS["torch"], Kind) else None
