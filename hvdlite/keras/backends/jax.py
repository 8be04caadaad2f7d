"""Keras on JAX: steps are compiled programs, unless ``run_eagerly`` is set; on CPUs only."""

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvdlite import ops, xla
from hvdlite.auto_compression import settle
from hvdlite.compression import split
from hvdlite.errors import HorovodInternalError, InvalidArgumentError, UnsupportedError
from hvdlite.jax import as_weight, call, grouped_allreduce, grouped_broadcast, require_cpu
from hvdlite.keras.backends import Reduction, WeightTotal
from hvdlite.keras.library import keras
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import Kind
from hvdlite.xla import TensorGroup

__all__ = ["JaxKerasBackend", "make_backend"]


class JaxKerasBackend:
    """All gradients of a step go in one call, since XLA runs the calls of a program one after another.

    Single values go through NumPy where nothing is compiled.
    """

    name = "jax"
    traces_steps = True

    def is_eager(self, tensors: Sequence[Any]) -> bool:
        """As `KerasBackend.is_eager`."""
        return not any(isinstance(tensor, jax.core.Tracer) for tensor in tensors)

    def check_supported(self) -> None:
        """Refuses devices other than CPUs, and ``keras.distribution``, which would divide what mpirun has divided already."""
        require_cpu()
        if keras.distribution.distribution() is not None:
            raise UnsupportedError(
                "Keras trains under a keras.distribution, which hvdlite's ranks know nothing of: leave it out "
                "(keras.distribution.set_distribution(None)), and start one rank for each device"
            )

    def reduce_gradients(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        names: Sequence[str],
        groups: Sequence[Sequence[int]] | None,
        reduction: Reduction,
        weight: Any = None,
    ) -> list[Any]:
        """As `KerasBackend.reduce_gradients`."""
        set_id = reduction.process_set.require_member(Kind.ALLREDUCE)
        given = [_dense(gradient, name) for gradient, name in zip(gradients, names, strict=True) if gradient is not None]
        numbers = [(gradient.dtype.name, gradient.size) for gradient in given]
        settled = settle(reduction.compression, reduction.process_set, reduction.op, numbers, traced=True)
        compressor, codec = split(settled)
        reduced = list(gradients)
        described: list[TensorGroup] = []
        sent: list[tuple[int, Any, Any]] = []  # place, what is sent, and what decompression needs
        for places in _partition(groups, [gradient is not None for gradient in gradients]):
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
                    weighted=weight is not None,
                    codec=codec,
                )
            )
            sent += members
        outputs = call(described, [tensor for _, tensor, _ in sent], alone=True, weight=weight)
        for (place, _, context), output in zip(sent, outputs, strict=True):
            reduced[place] = compressor.decompress(output, context)
        return reduced

    def as_weight(self, weight: Any, op: int) -> jax.Array:
        """As `KerasBackend.as_weight`."""
        return as_weight(weight, op)

    def new_weight_total(self) -> WeightTotal:
        """As `KerasBackend.new_weight_total`: refused."""
        raise UnsupportedError(
            "on JAX the weights of the passes of an accumulation (gradient_accumulation_steps, backward_passes_per_step) "
            "cannot be added up: train on Keras's torch or TensorFlow backend, or without weights or accumulation"
        )

    def broadcast_from(
        self,
        variables: Sequence[Any],
        roots: Sequence[int],
        names: Sequence[str],
        process_set: ProcessSet,
        gradients: Sequence[Any],
        complete: Any,
    ) -> list[Any]:
        """As `KerasBackend.broadcast_from`, in one call, for which a gradient is an operand too: so it comes behind theirs."""
        set_id = process_set.require_member(Kind.BROADCAST)
        kinds = [(root, name, variable.value) for root, name, variable in zip(roots, names, variables, strict=True)]
        kinds.append((roots[0], f"{names[0]}.behind", gradients[0].ravel()[:1]))
        groups = [
            TensorGroup(Kind.BROADCAST, name, [(value.dtype.name, value.shape)], root=root, process_set=set_id)
            for root, name, value in kinds
        ]

        def share(values: list[Any]) -> list[Any]:
            return call(groups, values, alone=True)

        values = [value for _, _, value in kinds]
        received = share(values) if complete is None else jax.lax.cond(complete, share, list, values)
        return received[:-1]

    def other_variables(self, model: Any) -> list[Any]:
        """As `KerasBackend.other_variables`: arrays do not change."""
        return []

    def loss_in(self, error: Exception) -> HorovodInternalError | None:
        """As `KerasBackend.loss_in`."""
        return xla.loss_in(error)

    def compare_when_run(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduction: Reduction, start_check: str
    ) -> AbstractContextManager[Any]:
        """As `KerasBackend.compare_when_run`; a traced step of one's own has no variables, but takes and gives their values."""
        return contextlib.nullcontext()

    def scale(self, gradient: Any, factor: float) -> Any:
        """As `KerasBackend.scale`."""
        return gradient * factor

    def allreduce(
        self,
        value: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: Any,
    ) -> Any:
        """As `KerasBackend.allreduce`; in a compiled program, too, if it has a name."""
        factors: dict[str, Any] = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}

        def compiled(tensor: Any, name: str) -> Any:
            return grouped_allreduce([tensor], name=name, op=op, compression=compression, **factors)[0]

        def eager(array: Any) -> Any:
            return ops.allreduce(array, name=name, op=op, compression=compression, **factors)

        return _apply(value, name, eager, compiled)

    def allgather(self, value: Any, name: str | None) -> Any:
        """As `KerasBackend.allgather`; not in a compiled program."""
        return _apply(value, name, lambda array: ops.allgather(array, name))

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any:
        """As `KerasBackend.broadcast`; in a compiled program, too, if it has a name."""
        return _apply(
            value,
            name,
            lambda array: ops.broadcast(array, root_rank, name),
            lambda tensor, name: grouped_broadcast([tensor], root_rank, name=name)[0],
        )

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any:
        """As `KerasBackend.reducescatter`; not in a compiled program."""
        return _apply(value, name, lambda array: ops.reducescatter(array, name, op=op))


def _partition(groups: Sequence[Sequence[int]] | None, present: Sequence[bool]) -> list[list[int]]:
    """The places of gradients that are present, in groups, of which those in no list are alone; one group without lists."""
    everything = [place for place, is_there in enumerate(present) if is_there]
    if groups is None:
        return [everything] if everything else []
    chosen = [[place for place in members if present[place]] for members in groups]
    grouped = {place for members in chosen for place in members}
    return [members for members in chosen if members] + [[place] for place in everything if place not in grouped]


def _dense(gradient: Any, name: str) -> Any:
    if not isinstance(gradient, jax.Array):
        raise UnsupportedError(f"the gradient of {name!r} is a {type(gradient).__name__}; on JAX only dense arrays are reduced")
    return gradient


def _apply(value: Any, name: str | None, eager: Callable[[Any], Any], compiled: Callable[[Any, str], Any] | None = None) -> Any:
    """Runs a collective on a value in host memory, or as part of the program that is being compiled."""
    tensor = keras.ops.convert_to_tensor(value)
    if not isinstance(tensor, jax.core.Tracer):
        return jnp.asarray(eager(np.asarray(tensor)))
    if compiled is None:
        raise UnsupportedError(
            "in a compiled program XLA must know the shape of a result, so there are allreduce and broadcast only: call it "
            "outside of the training step, or compile the model with run_eagerly=True"
        )
    if not name:
        raise InvalidArgumentError("a collective in a compiled program needs a name: it cannot be numbered when it runs")
    return compiled(tensor, name)


def make_backend() -> JaxKerasBackend:
    """The backend."""
    return JaxKerasBackend()
