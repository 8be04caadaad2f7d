"""Defines and compares what must be equal on all ranks: settings, and properties of parameters.

The ranks make the comparison before they reduce gradients.
"""

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hvdlite.agreement import difference
from hvdlite.compression import describe_compression
from hvdlite.errors import InvalidArgumentError, MismatchError
from hvdlite.objects import exchange_by_rank, exchange_object
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import OP_NAMES
from hvdlite.torch.gpu import CPU, gpu_of
from hvdlite.torch.parameter_gradient import ParameterGradient, declared_dtype


@dataclass(frozen=True)
class ReducerSettings:
    """The settings with which a wrapped optimizer's gradients are reduced.

    Attributes:
        prefix: the name of the optimizer, the same on all ranks of the process set, and unique in the set.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: divides the gradients before they are summed, and multiplies the result.
        compression: the argument of `DistributedOptimizer`; `hvdlite.compression` lists the kinds.
        backward_passes_per_step: the number of backward passes whose gradients each rank adds up before a reduction.
        average_aggregated_gradients: is the result divided by `backward_passes_per_step`?
        sparse_as_dense: are sparse gradients reduced as dense ones?
        process_set: the ranks that train together.
        gradient_as_bucket_view: may gradients lie in an arena? None: only if the last ``zero_grad`` on every rank zeroed the
            gradients, and did not set them to None.
        start_check: what happens if the ranks train different models: a mode of `hvdlite.start_check`.
        shard: does each rank keep only a part of the optimizer's state?

    """

    prefix: str
    op: int
    gradient_predivide_factor: float
    compression: Any
    backward_passes_per_step: int
    average_aggregated_gradients: bool
    sparse_as_dense: bool
    process_set: ProcessSet
    gradient_as_bucket_view: bool | None
    start_check: str
    shard: bool

    @property
    def divisor(self) -> int:
        """The number by which the sum over backward passes is divided. An Average also divides by the number of ranks."""
        return self.backward_passes_per_step if self.average_aggregated_gradients else 1

    @property
    def scales(self) -> tuple[float, float]:
        """Two factors: the engine multiplies each rank's gradients by the first, and their sum over the ranks by the second."""
        return 1.0 / self.gradient_predivide_factor, self.gradient_predivide_factor / self.divisor

    def describe(self) -> dict[str, Hashable]:
        """The settings that must be equal on all ranks. The keys are the names of `DistributedOptimizer`'s arguments."""
        described = {**vars(self), "op": OP_NAMES[self.op], "compression": describe_compression(self.compression)}
        del described["prefix"], described["process_set"]  # the names of the exchange have them
        return described


@dataclass(frozen=True)
class AgreedGradients:
    """The properties on which the ranks have agreed.

    Attributes:
        sparse: the number of sparse dimensions of each gradient that is sparse on some rank, by the parameter's place in the
            list of parameters.
        dtypes: by the parameter's place, the dtype to which torch promotes the dtypes of all ranks' unreduced gradients. A
            parameter has an entry only if it accepts gradients of any dtype, and if some rank has an unreduced gradient of it.
        kept: did the last ``zero_grad`` on every rank zero the gradients, and not set them to None?
        unchecked: is the start check (`hvdlite.start_check`) of some rank not over?
    """

    sparse: dict[int, int]
    dtypes: dict[int, torch.dtype]
    kept: bool
    unchecked: bool


def agree(
    settings: ReducerSettings,
    gradients: Sequence[ParameterGradient],
    groups: Hashable,
    generation: int,
    kept: bool = False,
    unchecked: bool = False,
) -> AgreedGradients:
    """Checks that all ranks reduce the same parameters in the same way. Collective over the process set.

    Args:
        settings: the settings of the optimizer.
        gradients: the optimizer's parameters.
        groups: a description of the user's groups, with names instead of parameters.
        generation: the number of this agreement. It counts the optimizer's agreements in this job, begins at 1, and is the same
            on all ranks.
        kept: did the last ``zero_grad`` on this rank zero the gradients, and not set them to None? Ranks may differ.
        unchecked: is the start check of this rank not over? Ranks may differ.

    Raises:
        MismatchError: the ranks have different settings, groups or parameters. The text says which rank has what, and is the
            same on all ranks.
        InvalidArgumentError: (before the exchange, on this rank only) a gradient has a layout that cannot be reduced.
        HorovodInternalError: a rank failed.

    """
    gpus: list[int] = []
    described = [(gradient.name, _described(gradient, gpus)) for gradient in gradients]
    description = [*({**settings.describe(), "groups": groups}.items()), *described]
    digest = hashlib.sha256(repr(description).encode()).hexdigest()
    sparse = {place: dims for place, gradient in enumerate(gradients) if (dims := _sparse_dim(gradient)) is not None}
    name = f"{settings.prefix}.plan{generation}"
    dtypes = {place: dtype for place, gradient in enumerate(gradients) if (dtype := _chosen_dtype(gradient)) is not None}
    everyone = exchange_object((digest, sparse, dtypes, kept, unchecked), name, settings.process_set)
    if len({digest for digest, *_ in everyone}) > 1:
        descriptions = exchange_by_rank(description, f"{name}.differs", settings.process_set)
        raise MismatchError(
            f"DistributedOptimizer ({settings.prefix}) in process set {settings.process_set.process_set_id}: "
            f"{difference(descriptions)}; build the same model and optimizer on every rank"
        )
    widest: dict[int, torch.dtype] = {}
    for _, _, found, *_ in everyone:
        for place, dtype in found.items():
            widest[place] = torch.promote_types(dtype, widest.get(place, dtype))
    return AgreedGradients(
        sparse={place: dims for _, found, *_ in everyone for place, dims in found.items()},
        dtypes=widest,
        kept=all(kept for *_, kept, _ in everyone),
        unchecked=any(unchecked for *_, unchecked in everyone),
    )


def _described(gradient: ParameterGradient, gpus: list[int]) -> str:
    """A text with those properties of a parameter that must be equal on all ranks.

    `gpus` are the GPUs of the parameters before this one. If this parameter is on a GPU that is not in the list, this function
    appends the GPU.

    Ranks have different GPUs. But parameters that share a GPU on one rank must share a GPU on every rank, because all gradients
    of a bucket are on one GPU. So the text does not contain the GPU's number, but its place in `gpus`.
    """
    param = gradient.param
    gpu = gpu_of(param)
    if gpu != CPU and gpu not in gpus:
        gpus.append(gpu)
    text = f"{str(param.dtype).removeprefix('torch.')} {list(param.shape)}"
    if not param.is_contiguous():
        text += f" with strides {list(param.stride())}"
    declared = declared_dtype(param)
    if declared is not param.dtype:
        text += f" with gradients of dtype {'any' if declared is None else str(declared).removeprefix('torch.')}"
    if gpu != CPU:
        text += f" on another GPU (number {gpus.index(gpu) + 1} of the model's GPUs)" if gpus.index(gpu) else " on a GPU"
    return text + ("" if param.requires_grad else " (frozen)")


def _chosen_dtype(gradient: ParameterGradient) -> torch.dtype | None:
    """The dtype of the parameter's gradient if it is unreduced and the parameter accepts gradients of any dtype; else None."""
    grad = gradient.param.grad
    return grad.dtype if grad is not None and gradient.dirty and declared_dtype(gradient.param) is None else None


def _sparse_dim(gradient: ParameterGradient) -> int | None:
    """The number of sparse dimensions of the parameter's gradient if it is unreduced and sparse; else None."""
    grad = gradient.param.grad
    if grad is None or not gradient.dirty or grad.layout is torch.strided:
        return None
    if grad.layout is not torch.sparse_coo:
        raise InvalidArgumentError(
            f"the gradient of parameter {gradient.name!r} has layout {grad.layout}, which cannot be reduced; compute it "
            "with operations that give dense or coordinate (torch.sparse_coo) gradients"
        )
    return grad.sparse_dim()
