"""Keras on torch. Gradients are tensors with values when the optimizer is called, and never traced."""

from typing import Any

import numpy as np
import torch

from hvdlite import ops
from hvdlite.keras.backends import GradientStep, KerasBackend, SharedVariables
from hvdlite.keras.library import keras
from hvdlite.keras.variables import Held
from hvdlite.partition import partition
from hvdlite.requests import Max
from hvdlite.submission import check_weight
from hvdlite.torch.gpu import reachable


class TorchWeightTotal:
    """A `WeightTotal` of numbers."""

    def __init__(self) -> None:
        self._total = 0.0

    def assign_add(self, weight: float) -> None:
        """As `WeightTotal.assign_add`."""
        self._total += weight

    def assign(self, value: float) -> None:
        """As `WeightTotal.assign`."""
        self._total = value

    def read_value(self) -> float:
        """As `WeightTotal.read_value`."""
        return self._total


class TorchKerasBackend(KerasBackend):
    """Reduces all gradients of a step in one group (or in the user's groups), so each step fuses them in the same way.

    A compiled training step (``jit_compile=True``) runs the methods of this class outside of its graph.
    """

    traces_steps = False

    def check_supported(self) -> None:
        """Checks nothing: Keras does not use torch's ways to distribute a model."""

    def reduce_gradients(self, step: GradientStep) -> list[Any]:
        """As `KerasBackend.reduce_gradients`. If a gradient is None on some ranks only, it counts as zeros there."""
        names, reduction = step.names, step.reduction
        process_set = reduction.process_set
        used = np.array([gradient is not None for gradient in step.gradients], dtype=np.uint8)
        handle = ops.allreduce_async(used, name=f"{names[0]}.used", op=Max, process_set=process_set)
        sent = [_sent(gradient, variable) for gradient, variable in zip(step.gradients, step.variables, strict=True)]
        reduced: list[Any] = [None] * len(sent)
        for members in partition(step.groups, range(len(sent))):
            outputs = ops.grouped_allreduce(
                [sent[place] for place in members],
                name=names[members[0]],
                compression=reduction.compression,
                op=reduction.op,
                prescale_factor=reduction.prescale,
                postscale_factor=reduction.postscale,
                process_set=process_set,
                weight=step.weight,
            )
            for place, output in zip(members, outputs, strict=True):
                reduced[place] = output
        anyone = handle.synchronize()
        return [
            output.to(variable.value.device) if someone else None
            for output, variable, someone in zip(reduced, step.variables, anyone, strict=True)
        ]

    def as_weight(self, weight: Any, op: int) -> float:
        """As `KerasBackend.as_weight`."""
        return check_weight(weight.item() if isinstance(weight, torch.Tensor) and weight.ndim == 0 else weight, op)

    def new_weight_total(self) -> "TorchWeightTotal":
        """As `KerasBackend.new_weight_total`."""
        return TorchWeightTotal()

    def broadcast_from(self, shared: SharedVariables) -> list[Any]:
        """As `KerasBackend.broadcast_from`. It works in place if the engine can reach a variable's memory."""
        held = [variable.value.detach() for variable in shared.variables]
        sent = [reachable(tensor.contiguous()) for tensor in held]
        handles = [
            ops.broadcast_async_(tensor, root, name, shared.process_set)
            for tensor, root, name in zip(sent, shared.roots, shared.names, strict=True)
        ]
        for handle in handles:
            handle.synchronize()
        return [
            None if tensor.data_ptr() == own.data_ptr() else tensor.to(own.device)
            for tensor, own in zip(sent, held, strict=True)
        ]

    def other_variables(self, model: Any) -> list[Any]:
        """As `KerasBackend.other_variables`: buffers of torch modules, and parameters that are no variables of Keras."""
        # Compared by address, because torch wraps the tensor of each variable of Keras in a parameter, another object.
        known = {variable.value.data_ptr() for variable in (*model.variables, *model.metrics_variables)}
        found = []
        for place, layer in enumerate(model._flatten_layers()):
            for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
                if tensor.numel() and tensor.data_ptr() not in known:
                    known.add(tensor.data_ptr())
                    found.append(Held(name if layer is model else f"layer {place}: {name}", tensor))
        return found

    def collective(self, function: str, value: Any, name: str | None, **arguments: Any) -> Any:
        """As `KerasBackend.collective`, in memory that the engine can reach."""
        tensor = keras.ops.convert_to_tensor(value)
        return getattr(ops, function)(reachable(tensor.detach()), name=name, **arguments).to(tensor.device)


def _sent(gradient: Any, variable: Any) -> torch.Tensor:
    """The gradient in memory that the engine can reach. For None: zeros of the variable's shape and dtype."""
    return reachable(torch.zeros_like(variable.value) if gradient is None else gradient.detach())


BACKEND = TorchKerasBackend()
