"""The sharded state of an optimizer in checkpoints of torch.distributed.checkpoint (DCP): each rank writes and reads its part.

If a tensor of the state has its parameter's shape, the checkpoint has this tensor in one dimension, in the order of the
parameter's memory. Each owner of the parameter (a rank that updates the parameter or a part of it) writes a slice of the
tensor. So a job with another number of ranks can load other slices of the tensor from the checkpoint. All other values of the
state, such as counters of steps and tensors of another shape, are saved unchanged by the owners. Such a tensor may
have one dimension and as many elements as its parameter, which has more dimensions. Then its key gets a suffix, so that the
tensor is not read as slices.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from hvdlite.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from hvdlite.torch.sharded_parameter import Sharded

_SEPARATOR = "."  # with which DCP joins the keys of nested dictionaries
_UNSLICED = ".unsliced"  # ends the key of a tensor that looks like slices


def _dcp(module: str) -> Any:
    """A module of DCP. It is imported only when needed, because torch may have been built without torch.distributed."""
    return import_module(f"torch.distributed.checkpoint.{module}")


class Slice(torch.Tensor):
    """A part of a tensor of one dimension. DCP calls the methods of this class to learn which part is on this rank.

    Attributes:
        start: the index, in the whole tensor, of the slice's first element.
        total: the number of elements of the whole tensor.
    """

    start: int
    total: int

    @staticmethod
    def of(tensor: torch.Tensor, start: int, total: int) -> "Slice":
        """A slice that uses the memory of a tensor of one dimension."""
        made: Slice = tensor.as_subclass(Slice)
        made.start, made.total = start, total
        return made

    def plain(self) -> torch.Tensor:
        """The part as an ordinary tensor, in the same memory."""
        tensor: torch.Tensor = self.as_subclass(torch.Tensor)
        return tensor

    def size(self, *_: Any) -> Any:
        """The size of the whole tensor, which DCP compares with the size in the checkpoint."""
        return torch.Size([self.total])

    def _chunk(self) -> Any:
        return _dcp("metadata").ChunkStorageMetadata(offsets=torch.Size([self.start]), sizes=self.plain().size())

    def __create_write_items__(self, fqn: str, _: Any) -> list[Any]:
        planner, metadata = _dcp("planner"), _dcp("metadata")
        data = planner.TensorWriteData(
            chunk=self._chunk(),
            properties=metadata.TensorProperties.create_from_tensor(self.plain()),
            size=torch.Size([self.total]),
        )
        index = metadata.MetadataIndex(fqn, torch.Size([self.start]))
        return [planner.WriteItem(index=index, type=planner.WriteItemType.SHARD, tensor_data=data)]

    def __create_chunk_list__(self) -> list[Any]:
        return [self._chunk()]

    def __get_tensor_shard__(self, _: Any) -> torch.Tensor:
        return self.plain()


def require_slices() -> None:
    """Checks that torch's DCP supports tensors such as `Slice`, which say which part of a whole they are.

    Raises:
        UnsupportedError: torch is older than 2.6, or was built without torch.distributed.
    """
    try:
        knows = "__create_write_items__" in _dcp("planner_helpers")._create_write_items.__code__.co_consts
    except (ImportError, AttributeError):
        knows = False
    if not knows:
        raise UnsupportedError(
            f"sharded checkpoints need torch 2.6 or newer with torch.distributed, this is {torch.__version__}: use state_dict()"
        )


def described(sharded: "Sharded", state: Mapping[str, Any]) -> dict[str, Any]:
    """What this rank writes of a parameter's state. The rank must own the parameter or a part of it."""
    found = {}
    for key, value in state.items():
        kept = _sliced(sharded, value)
        looks_sliced = kept is value and getattr(value, "shape", None) == (sharded.param.numel(),)
        found[f"{key}{_UNSLICED}" if looks_sliced else key] = kept
    return found


def _sliced(sharded: "Sharded", value: Any) -> Any:
    param = sharded.param
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return value
    if sharded.is_split and value.shape == (sharded.stop - sharded.start,):
        return Slice.of(value.detach(), sharded.start, param.numel())
    if value.shape == param.shape:
        return Slice.of(sharded.flat(value), 0, param.numel())
    return value


def template(sharded: "Sharded", entries: Mapping[str, Any]) -> dict[str, Any]:
    """Memory for what this rank reads of a parameter's state. The rank must own the parameter or a part of it.

    Args:
        sharded: the parameter.
        entries: the result of `entries_of`.
    """
    found: dict[str, Any] = {}
    start = sharded.name + _SEPARATOR
    for key, entry in ((name.removeprefix(start), entry) for name, entry in entries.items() if name.startswith(start)):
        size = getattr(entry, "size", None)
        if size is None:
            found[key] = 0  # stands for any object
        elif tuple(size) == (sharded.param.numel(),) and not key.endswith(_UNSLICED):
            count = sharded.stop - sharded.start
            memory = torch.empty(count, dtype=entry.properties.dtype, device=sharded.param.device)
            found[key] = Slice.of(memory, sharded.start, sharded.param.numel())
        else:
            device = sharded.param.device if len(size) else "cpu"
            found[key] = torch.empty(size, dtype=entry.properties.dtype, device=device)
    return found


def merged(sharded: "Sharded", state: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a parameter's state to the form that the optimizer keeps. DCP has read `state` into the memory of `template`."""
    found = {}
    for key, value in state.items():
        if isinstance(value, Slice):
            value = value.plain() if sharded.is_split else sharded.unflattened(value.plain())
        found[key.removesuffix(_UNSLICED)] = value
    return found


def entries_of(reader: Any, under: str) -> dict[str, Any]:
    """What DCP's metadata says about each value of an optimizer's state in a checkpoint.

    Each key of the result is a parameter's name, a dot and a key of the parameter's state. If the optimizer had no state when
    it was saved, for example before its first step, the result is empty.

    Args:
        reader: the reader of the checkpoint.
        under: the key of the optimizer's state in the dictionary that was saved.

    Raises:
        InvalidArgumentError: the checkpoint has no sharded state of an optimizer at the key `under`.
    """
    outer = f"{under}{_SEPARATOR}" if under else ""
    known = reader.read_metadata().state_dict_metadata
    if f"{outer}orders" not in known:
        raise InvalidArgumentError(
            f"the checkpoint has no sharded state of an optimizer under {under!r}: pass under=..., the key that "
            "optimizer.sharded_state_dict() had in the saved dictionary"
        )
    prefix = f"{outer}state{_SEPARATOR}"
    return {fqn.removeprefix(prefix): entry for fqn, entry in known.items() if fqn.startswith(prefix)}
