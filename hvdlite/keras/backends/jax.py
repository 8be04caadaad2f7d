"""Keras on JAX, on CPUs only. Steps are compiled programs, unless ``run_eagerly`` is set."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvdlite import ops, xla
from hvdlite.auto_compression import settle
from hvdlite.compression import split
from hvdlite.errors import HorovodInternalError, InvalidArgumentError, UnsupportedError
from hvdlite.jax import as_weight, call, grouped_allreduce, grouped_broadcast, require_cpu
from hvdlite.keras.backends import GradientStep, KerasBackend, SharedVariables, WeightTotal
from hvdlite.keras.library import keras
from hvdlite.partition import partition
from hvdlite.requests import Kind
from hvdlite.xla import TensorGroup


class JaxKerasBackend(KerasBackend):
    """Reduces all gradients of a step in one call, because XLA runs the calls of a program one after another.

    Outside of compiled programs single values are converted to NumPy arrays. Compiled programs do not compare the ranks'
    variables (`compare_when_run`), because variables are arguments and results of a traced step. Models have no other variables
    than those of Keras (`other_variables`), because arrays of JAX do not change.
    """

    traces_steps = True

    def is_eager(self, tensors: Sequence[Any]) -> bool:
        """As `KerasBackend.is_eager`."""
        return not any(isinstance(tensor, jax.core.Tracer) for tensor in tensors)

    def check_supported(self) -> None:
        """Refuses devices other than CPUs, and ``keras.distribution``, which would distribute the training a second time."""
        require_cpu()
        if keras.distribution.distribution() is not None:
            raise UnsupportedError(
                "Keras trains under a keras.distribution, which hvdlite does not support: leave it out "
                "(keras.distribution.set_distribution(None)), and start one rank for each device"
            )

    def reduce_gradients(self, step: GradientStep) -> list[Any]:
        """As `KerasBackend.reduce_gradients`."""
        gradients, names, reduction = step.gradients, step.names, step.reduction
        set_id = reduction.process_set.require_member(Kind.ALLREDUCE)
        given = [_dense(gradient, name) for gradient, name in zip(gradients, names, strict=True) if gradient is not None]
        numbers = [(gradient.dtype.name, gradient.size) for gradient in given]
        settled = settle(reduction.compression, reduction.process_set, reduction.op, numbers, traced=True)
        compressor, codec = split(settled)
        reduced = list(gradients)
        described: list[TensorGroup] = []
        sent: list[tuple[int, Any, Any]] = []  # index of the gradient, tensor to send, context for decompress
        for places in partition(step.groups, [place for place, gradient in enumerate(gradients) if gradient is not None]):
            members = [(place, *compressor.compress(_dense(gradients[place], names[place]))) for place in places]
            described.append(
                TensorGroup(
                    Kind.ALLREDUCE,
                    names[places[0]],
                    [(tensor.dtype.name, tensor.shape) for _, tensor, _ in members],
                    names=[names[place] for place in places],
                    op=reduction.op,
                    process_set=set_id,
                    prescale=reduction.prescale,
                    postscale=reduction.postscale,
                    weighted=step.weight is not None,
                    codec=codec,
                )
            )
            sent += members
        outputs = call(described, [tensor for _, tensor, _ in sent], alone=True, weight=step.weight)
        for (place, _, context), output in zip(sent, outputs, strict=True):
            reduced[place] = compressor.decompress(output, context)
        return reduced

    def as_weight(self, weight: Any, op: int) -> jax.Array:
        """As `KerasBackend.as_weight`."""
        return as_weight(weight, op)

    def new_weight_total(self) -> WeightTotal:
        """As `KerasBackend.new_weight_total`: always raises UnsupportedError."""
        raise UnsupportedError(
            "on JAX the weights of the passes of an accumulation (gradient_accumulation_steps, backward_passes_per_step) "
            "cannot be added up: train on Keras's torch or TensorFlow backend, or leave out the weights or the accumulation"
        )

    def broadcast_from(self, shared: SharedVariables) -> list[Any]:
        """As `KerasBackend.broadcast_from`, in one call.

        A reduced gradient is an operand of the call, too. So XLA runs the call after the reduction.
        """
        roots, names, variables = shared.roots, shared.names, shared.variables
        set_id = shared.process_set.require_member(Kind.BROADCAST)
        kinds = [(root, name, variable.value) for root, name, variable in zip(roots, names, variables, strict=True)]
        kinds.append((roots[0], f"{names[0]}.behind", shared.gradients[0].ravel()[:1]))
        groups = [
            TensorGroup(Kind.BROADCAST, name, [(value.dtype.name, value.shape)], root=root, process_set=set_id)
            for root, name, value in kinds
        ]

        def share(values: list[Any]) -> list[Any]:
            return call(groups, values, alone=True)

        values = [value for _, _, value in kinds]
        received = share(values) if shared.complete is None else jax.lax.cond(shared.complete, share, list, values)
        return received[:-1]

    def loss_in(self, error: Exception) -> HorovodInternalError | None:
        """As `KerasBackend.loss_in`."""
        return xla.loss_in(error)

    def collective(self, function: str, value: Any, name: str | None, **arguments: Any) -> Any:
        """As `KerasBackend.collective`, in host memory. In compiled programs only `allreduce` and `broadcast` work."""
        tensor = keras.ops.convert_to_tensor(value)
        if not isinstance(tensor, jax.core.Tracer):
            return jnp.asarray(getattr(ops, function)(np.asarray(tensor), name=name, **arguments))
        compiled: Any = {"allreduce": grouped_allreduce, "broadcast": grouped_broadcast}.get(function)
        if compiled is None:
            raise UnsupportedError(
                "in a compiled program XLA must know the shape of a result, so only allreduce and broadcast work there: call "
                "it outside of the training step, or compile the model with run_eagerly=True"
            )
        if not name:
            raise InvalidArgumentError(
                "a collective in a compiled program needs a name, since it cannot be numbered: pass name="
            )
        return compiled([tensor], name=name, **arguments)[0]


def _dense(gradient: Any, name: str) -> Any:
    if not isinstance(gradient, jax.Array):
        raise UnsupportedError(
            f"the gradient of {name!r} is a {type(gradient).__name__}; on JAX only dense arrays are supported"
        )
    return gradient


BACKEND = JaxKerasBackend()
