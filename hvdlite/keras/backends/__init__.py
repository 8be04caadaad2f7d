"""The interface of `hvdlite.keras` to a backend of Keras (the framework on which Keras runs), and the backend of this process.

All other modules of `hvdlite.keras` use this interface and serve every backend. A backend's module is imported only if Keras
runs on that backend, so hvdlite imports no framework that the user has not chosen.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from hvdlite.errors import HorovodInternalError, UnsupportedError
from hvdlite.keras.library import keras
from hvdlite.process_sets import ProcessSet

__all__ = ["GradientStep", "KerasBackend", "Reduction", "SharedVariables", "WeightTotal", "current_backend"]

_BACKENDS = ("jax", "tensorflow", "torch")


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced: ``postscale * op over ranks of (prescale * gradient)``.

    Attributes:
        op: `hvdlite.Average` or `hvdlite.Sum`.
        prescale: a factor for each rank's gradients.
        postscale: a factor for the results.
        compression: a class with static `compress` and `decompress`, for tensors of this backend's framework; a codec,
            `Compression.auto` or None.
        sparse_as_dense: True: sparse gradients are made dense. False: their rows are gathered.
        process_set: the ranks that take part. Backends are asked to reduce only on members of sets of at least two ranks.

    """

    op: int
    prescale: float
    postscale: float
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet


@dataclass(frozen=True)
class GradientStep:
    """The gradients of one step, and how they are reduced.

    Attributes:
        gradients: a tensor of the backend for each variable, dense or sparse (``tf.IndexedSlices``), which is not modified.
            None: the loss does not depend on the variable. If `KerasBackend.traces_steps`, the same gradients are None on all
            ranks.
        variables: the variables of the gradients.
        names: for each gradient, the name of its allreduce in the engine, unique among all operations in flight.
        groups: lists of indices of `gradients`. The gradients of a list are agreed on and sent together; a gradient in no list
            is sent alone. None: the backend chooses the groups, the same on all ranks and in all runs.
        reduction: how to reduce.
        weight: the weight of this rank in weighted means, from `KerasBackend.as_weight`. Either all ranks give a weight, or
            none.

    """

    gradients: Sequence[Any]
    variables: Sequence[Any]
    names: Sequence[str]
    groups: Sequence[Sequence[int]] | None
    reduction: Reduction
    weight: Any


@dataclass(frozen=True)
class SharedVariables:
    """Variables that are broadcast, because each of them was updated by only one rank.

    Attributes:
        variables: variables of Keras or the framework, with the same shapes and dtypes on all ranks.
        roots: for each variable, the rank in the job whose value all ranks get.
        names: as in `GradientStep`.
        process_set: the ranks that take part.
        gradients: results of `KerasBackend.reduce_gradients`. The broadcasts come after that reduction.
        complete: with gradient accumulation, a boolean or a traced tensor: whether this pass completes the training step. On
            JAX the same program runs in every pass, and sends only if the step is complete. None: there is no accumulation.

    """

    variables: Sequence[Any]
    roots: Sequence[int]
    names: Sequence[str]
    process_set: ProcessSet
    gradients: Sequence[Any]
    complete: Any


class WeightTotal(Protocol):
    """The sum of the weights of passes whose gradients are reduced together. A ``tf.Variable`` has these methods, too."""

    def assign_add(self, weight: Any) -> Any:
        """Adds the weight of a pass, from `KerasBackend.as_weight`."""

    def assign(self, value: float) -> Any:
        """Sets the sum."""

    def read_value(self) -> Any:
        """The sum."""


class KerasBackend(Protocol):
    """One Keras backend. All tensors are those of the backend's framework.

    Methods raise the errors of `hvdlite.ops`, or those that the framework raises instead when an operation fails. The methods
    with a body are defaults, for backends that do not define these methods.

    Attributes:
        traces_steps: True: steps are traced, so that the same gradients are None on all ranks. False: a gradient may be None on
            some ranks only.
    """

    traces_steps: bool

    def is_eager(self, tensors: Sequence[Any]) -> bool:
        """Whether these tensors have values. Tensors of a program that is being traced have none."""
        return True

    def check_supported(self) -> None:
        """Checks that hvdlite can train with the framework as it is set up. Called when an optimizer is wrapped.

        Raises:
            UnsupportedError: the framework itself distributes the training (``tf.distribute``, ``keras.distribution``),
                or hvdlite does not support this installation of the framework; the text says what to do.
        """

    def reduce_gradients(self, step: GradientStep) -> list[Any]:
        """Reduces the gradients of one training step over the ranks of the process set. Collective over this set.

        It is called eagerly, or while a step is traced (``tf.function``, ``jax.jit``, both also with XLA). All ranks of the set
        call it with the same names in the same order. They have compared shapes and dtypes of the variables before.

        Returns:
            The reduced gradients in order, with the shapes and dtypes of the gradients and the same bits on all ranks. A
            gradient that is None on all ranks stays None.
        """

    def as_weight(self, weight: Any, op: int) -> Any:
        """Converts a rank's weight to the type that `reduce_gradients` takes.

        Args:
            weight: a number of 0 or more, or a scalar tensor of the backend, which may be traced.
            op: the reduce operator.

        Raises:
            InvalidArgumentError: `weight` is no such number or tensor, or `op` is not Average.
        """

    def new_weight_total(self) -> WeightTotal:
        """Makes a sum, 0 at first, for the weights of passes that are reduced together. It is not saved with the optimizer.

        Raises:
            UnsupportedError: training steps of this backend (JAX) can keep no values but those of the optimizer's variables.
        """

    def broadcast_from(self, shared: SharedVariables) -> list[Any]:
        """Broadcasts each variable from its own root. It is called under the same conditions as `reduce_gradients`.

        Returns:
            The values in order, which the caller assigns to the variables. None: the variable has its value already.
        """

    def compare_when_run(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduction: Reduction, start_check: str, shard: bool
    ) -> AbstractContextManager[Any]:
        """A context in which the reduction of gradients is traced, if the traced program is the user's own loop.

        When the program runs, the ranks compare their variables before the operations that were traced in this context
        (`hvdlite.start_check`); with `shard` they compare even in the first run. A program that cannot call Python compares
        nothing.
        """
        return nullcontext()

    def scale(self, gradient: Any, factor: float) -> Any:
        """The gradient, dense or sparse, multiplied by a number. The dtype does not change."""
        return gradient * factor

    def collective(self, function: str, value: Any, name: str | None, **arguments: Any) -> Any:
        """Runs a collective on a value, over all ranks.

        Args:
            function: the name of the collective in `hvdlite`, such as ``"allreduce"``.
            value: a tensor or variable of the backend, or a value that it can convert (number, array, list).
            name: as for the collective.
            arguments: other arguments of the collective.

        Returns:
            A tensor of the backend, on the value's device.
        """

    def other_variables(self, model: Any) -> list[Any]:
        """Variables of the framework that a model holds, and Keras does not count among its weights. No random seeds.

        Returns:
            Objects that `hvdlite.keras.variables` can read and broadcast (``tf.Variable`` or `Held`), in the same order on all
            ranks.
        """
        return []

    def loss_in(self, error: Exception) -> HorovodInternalError | None:
        """The HorovodInternalError that caused this error of the framework; None: no lost rank caused the error.

        The default is for frameworks that pass errors of hvdlite on as they are.
        """
        return None


@cache
def current_backend() -> KerasBackend:
    """The backend that Keras runs on. It is the same for the whole life of the process.

    Raises:
        UnsupportedError: hvdlite does not support this backend.
    """
    name: str = keras.backend.backend()
    if name not in _BACKENDS:
        raise UnsupportedError(
            f"Keras runs on its backend {name!r}, on which hvdlite cannot train: set KERAS_BACKEND to one of "
            f"{', '.join(_BACKENDS)}"
        )
    backend: KerasBackend = import_module(f"hvdlite.keras.backends.{name}").BACKEND
    return backend
