"""Batch normalisation (Ioffe and Szegedy, ICML 2015) over the batches of all ranks.

Each rank adds up its own values. In the forward pass one small allgather collects the ranks' counts, means and sums of squared
deviations, and each rank combines them. Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances", 1979. In the backward pass each rank adds up its own gradients, and one small allreduce adds up the
ranks' sums.

Exchanged values are in float64, on the input's device if the engine can use that device's memory, and otherwise on the host.
This file applies to the input only operations that torch has for every device. Python code needs the sum of the counts on the
host. So if the input is on a GPU, the counts are exchanged separately, in host memory: to read them from the GPU, the host
would have to wait.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from hvdlite import ops
from hvdlite.errors import InvalidArgumentError
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Sum
from hvdlite.runtime import RUNTIME
from hvdlite.torch.derivatives import require_values
from hvdlite.torch.gpu import reachable
from hvdlite.torch.ops import allreduce

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Normalises each channel with mean and variance of the batches of all ranks, as one process with the whole batch does.

    Collective over `process_set` in training, and in evaluation if there are no running statistics. Each call takes one
    allgather in the forward pass (two on a GPU) and one allreduce in the backward pass (none if the input needs no gradient).
    All ranks must make these calls in the same order. The input must need a gradient on all ranks or on none. The batches may
    differ in size and may be empty on some ranks.

    The input's gradient is the gradient of the sum of all ranks' training losses. The gradients of weight and bias are sums
    over this rank's batch; `DistributedOptimizer` reduces them. Gradients can be differentiated again (``create_graph=True``
    on all ranks, for example for a gradient penalty). In this case the backward pass takes two more allreduces, and the second
    backward pass has allreduces, too.

    Input and output are ``[N, C]`` or ``[N, C, ...]``, of any floating dtype, on any device and in any memory format. A rank
    adds up its values in float32, or in float64 if the input is float64. Values on an NVIDIA GPU stay on the GPU, except the
    counts.

    Args:
        num_features: the number C of channels, the same on all ranks.
        eps: a number that is added to the variance.
        momentum: the weight of a new batch's statistics in the running statistics; None: the running statistics are the
            average of the statistics of all batches so far.
        affine: does the layer have a weight and a bias?
        track_running_stats: does the layer keep running statistics, which evaluation uses?
        process_set: the ranks that share their statistics.
        device: the device of parameters and buffers.
        dtype: the dtype of parameters and buffers.

    Raises:
        InvalidArgumentError: (on call) the input has another number of channels than C, fewer than two dimensions, or a dtype
            that is not floating; or all ranks together have a single value for each channel; or this rank is not in
            `process_set`.
        MismatchError, HorovodInternalError: (on call and backward) as for `hvdlite.allgather`.
        NotInitializedError: (on call) `init` has not been called.
        UnsupportedError: (on call) the input has a tangent (of forward-mode differentiation), or is inside of a ``torch.func``
            transform.

    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set) -> torch.nn.Module:
        """Replaces every BatchNorm layer inside a module. The new layers take over the parameters and buffers of the old ones.

        Args:
            module: changed in place; a layer used in several places stays one layer.
            process_set: the process set of the new layers.

        Returns:
            The module, or the new layer if the module is itself a BatchNorm layer.

        Raises:
            InvalidArgumentError: a lazy layer does not know its channels yet.

        """
        replaced: dict[torch.nn.Module, SyncBatchNorm] = {}
        for layer in module.modules():
            if isinstance(layer, _BatchNorm):
                replaced[layer] = cls._in_place_of(layer, process_set)
        for parent in list(module.modules()):
            for name, child in parent._modules.items():
                if child in replaced:
                    parent.add_module(name, replaced[child])
        return replaced.get(module, module)

    @classmethod
    def _in_place_of(cls, layer: _BatchNorm, process_set: ProcessSet) -> "SyncBatchNorm":
        if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():
            raise InvalidArgumentError(
                f"{layer} does not know its channels yet: convert it after a first batch has gone through"
            )
        arguments = (layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        made = cls(*arguments, process_set, device="meta")  # its own parameters are replaced at once
        for tensors in (layer._parameters, layer._buffers):
            for name, tensor in tensors.items():
                setattr(made, name, tensor)
        made.training = layer.training
        return made

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise InvalidArgumentError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise InvalidArgumentError(
                f"SyncBatchNorm for {self.num_features} channels got an input of shape {list(input.shape)}: the second "
                "dimension must be the number of channels"
            )
        if not input.is_floating_point():
            raise InvalidArgumentError(f"SyncBatchNorm takes floating dtypes, not {input.dtype}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalised input, in the input's shape, dtype and memory format; see the class."""
        self._check_input_dim(input)
        result: torch.Tensor = super().forward(input) if self._is_local() else self._normalise(input)
        return result

    def _is_local(self) -> bool:
        """Does this call need no other rank's values?"""
        if not self.training and self.running_mean is not None:
            return True
        RUNTIME.require_topology()
        return self.process_set.size() == 1 and self.process_set.included() is True

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch cannot trace collectives
    def _normalise(self, input: torch.Tensor) -> torch.Tensor:
        require_values(input)
        with torch.no_grad():
            own = _LocalValues(input)
            whole = own.with_others(f"sync_batch_norm.{self.num_features}.forward", self.process_set)
            if whole.count == 1:
                raise InvalidArgumentError(
                    "Expected more than 1 value per channel when training, got a single one on all ranks of "
                    f"{self.process_set} together (input size on this rank: {list(input.shape)})"
                )
            if self.training and self.track_running_stats:
                self._update_running(whole)
        arguments = (self, own, whole, input, self.weight, self.bias)
        result: torch.Tensor = _Normalise.apply(*arguments)  # type: ignore[no-untyped-call]
        return result

    def _update_running(self, whole: "_Whole") -> None:
        factor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        if whole.count == 0 or self.running_mean is None or self.running_var is None:
            return
        unbiased = whole.var * (whole.count / (whole.count - 1))
        for running, new in ((self.running_mean, whole.mean), (self.running_var, unbiased)):
            running.mul_(1 - factor).add_(new.to(running), alpha=factor)


def _per_channel(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Reshapes values, one for each channel, so that they fit inputs with this number of dimensions."""
    return values.reshape(-1, *[1] * (dim - 2))


def _sums(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum of each channel."""
    return values.sum([0, *range(2, values.dim())], dtype=dtype)


def _statistics_dtype(input: torch.Tensor) -> torch.dtype:
    return torch.promote_types(input.dtype, torch.float32)


@dataclass(frozen=True)
class _Whole:
    """The statistics of all ranks' values, in float64, on the device of the exchange. The variance is the biased one."""

    mean: torch.Tensor
    var: torch.Tensor
    count: int


class _LocalValues:
    """This rank's values. Each channel has a center near the mean of its values.

    Attributes:
        centered: the input minus the center: float32 or float64, on the input's device, in memory of its own.
        center: the center of each channel: float64, on the device of the exchange.

    """

    def __init__(self, input: torch.Tensor) -> None:
        dtype = _statistics_dtype(input)
        self._count = len(input) * math.prod(input.shape[2:])
        divisor = max(self._count, 1)
        center = _sums(input, dtype) / divisor
        self.centered = input - _per_channel(center, input.dim())
        # The center is a rounded mean, so the centered values have a small mean of their own. This mean matters if
        # the center is far from zero.
        sums = [center, _sums(self.centered, dtype) / divisor, _sums(self.centered.square(), dtype)]
        self.center, self._offset, self._squares = reachable(torch.stack(sums)).double()

    def with_others(self, name: str, process_set: ProcessSet) -> _Whole:
        """The statistics of all ranks. Collective over `process_set`."""
        count = torch.tensor([self._count], dtype=torch.float64, device="cpu")
        own = [self.center + self._offset, self._squares - self._count * self._offset.square()]
        channels = len(self.center)
        if self.center.is_cpu:
            everyone = ops.allgather(torch.cat([*own, count])[None], name, process_set)
            means, deviations, counts = everyone.split([channels, channels, 1], dim=1)
            total = int(counts.sum())
        else:
            handle = ops.allgather_async(count[None], f"{name}.counts", process_set)
            everyone = ops.allgather(torch.cat(own)[None], name, process_set)
            means, deviations = everyone.split([channels, channels], dim=1)
            host_counts = handle.synchronize()
            total = int(host_counts.sum())
            counts = host_counts.to(everyone.device, non_blocking=True)
        mean = (counts * means).sum(0) / max(total, 1)
        var = (deviations + counts * (means - mean).square()).sum(0) / max(total, 1)
        return _Whole(mean, var.clamp(min=0.0), total)


class _Normalise(torch.autograd.Function):
    """Normalises the input. The statistics depend on the input, too, and the gradient takes this into account."""

    @staticmethod
    def forward(
        ctx: Any,
        layer: SyncBatchNorm,
        own: _LocalValues,
        whole: _Whole,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        output, dim = own.centered, input.dim()
        scale = invstd = (whole.var + layer.eps).rsqrt().to(output)
        if weight is not None:
            scale = invstd * weight
        offset = (own.center - whole.mean).to(output) * scale
        if bias is not None:
            offset = offset + bias
        ctx.name, ctx.layer, ctx.count = f"sync_batch_norm.{layer.num_features}.backward", layer, whole.count
        ctx.save_for_backward(input, weight, whole.mean.to(output), invstd)
        return output.mul_(_per_channel(scale, dim)).add_(_per_channel(offset, dim)).to(input.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled() and ctx.needs_input_grad[3]:  # create_graph=True
            return _Normalise._differentiable_gradients(ctx, grad)
        return _Normalise._gradients(ctx, grad)

    @staticmethod
    def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layer: SyncBatchNorm = ctx.layer
        input, weight, mean, invstd = ctx.saved_tensors
        _, _, _, wants_input, wants_weight, wants_bias = ctx.needs_input_grad
        dtype, dim = _statistics_dtype(input), input.dim()
        centered = input - _per_channel(mean, dim)
        grads, products = _sums(grad, dtype), _sums(grad * centered, dtype)
        for_weight = (products * invstd).to(weight.dtype) if wants_weight else None
        for_bias = grads.to(weight.dtype) if wants_bias else None
        if not wants_input:
            return (None, None, None, None, for_weight, for_bias)
        sums = ops.allreduce(
            reachable(torch.stack([grads, products])).double(), name=ctx.name, op=Sum, process_set=layer.process_set
        )
        mean_grad, mean_product = (sums / max(ctx.count, 1)).to(centered)
        scale = invstd if weight is None else invstd * weight
        for_input = centered.mul_(_per_channel(-mean_product * invstd.square(), dim)).sub_(_per_channel(mean_grad, dim))
        for_input = for_input.add_(grad).mul_(_per_channel(scale, dim)).to(input.dtype)
        return (None, None, None, for_input, for_weight, for_bias)

    @staticmethod
    def _differentiable_gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The same gradients as `_gradients`, but computed from the input by operations that autograd can differentiate."""
        layer: SyncBatchNorm = ctx.layer
        input, weight, _, _ = ctx.saved_tensors
        dtype, dim = _statistics_dtype(input), input.dim()
        values, flowing = input.to(dtype), grad.to(dtype)

        def mean_of_all(what: str, *own: torch.Tensor) -> torch.Tensor:
            sums = allreduce(
                reachable(torch.stack(own)).double(), name=f"{ctx.name}.{what}", op=Sum, process_set=layer.process_set
            )
            mean: torch.Tensor = (sums / max(ctx.count, 1)).to(values)
            return mean

        centered = values - _per_channel(mean_of_all("mean", _sums(values, dtype))[0], dim)
        invstd = (mean_of_all("var", _sums(centered.square(), dtype))[0] + layer.eps).rsqrt()
        normal = centered * _per_channel(invstd, dim)
        grads, products = _sums(flowing, dtype), _sums(flowing * normal, dtype)
        mean_grad, mean_product = mean_of_all("gradients", grads, products)
        scale = invstd if weight is None else invstd * weight
        rest = flowing - _per_channel(mean_grad, dim) - normal * _per_channel(mean_product, dim)
        for_input = (rest * _per_channel(scale, dim)).to(input.dtype)
        _, _, _, _, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            *(None, None, None),
            for_input,
            products.to(weight.dtype) if wants_weight else None,
            grads.to(weight.dtype) if wants_bias else None,
        )
