"""What `hvdlite.keras` needs of a Keras backend, and the one that this process runs on.

Everything else of `hvdlite.keras` is written once, over this interface. A backend's module is imported only where Keras
runs on that backend, so none imports a framework that the user has not chosen.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from hvdlite.errors import HorovodInternalError, UnsupportedError
from hvdlite.keras.library import keras
from hvdlite.process_sets import ProcessSet

__all__ = ["KerasBackend", "Reduction", "WeightTotal", "current_backend", "partition"]

_BACKENDS = ("jax", "tensorflow", "torch")


@dataclass(frozen=True)
class Reduction:
    """How gradients are reduced: ``postscale * op over ranks of (prescale * gradient)``.

    Attributes:
        op: `hvdlite.Average` or `hvdlite.Sum`.
        prescale: multiplies each rank's gradients.
        postscale: multiplies the results.
        compression: a class with static `compress` and `decompress`, for tensors of this backend's framework.
        sparse_as_dense: are sparse gradients made dense, rather than gathered?
        process_set: the ranks that take part; this process is one of them, and not the only one.

    """

    op: int
    prescale: float
    postscale: float
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet


class WeightTotal(Protocol):
    """The sum of the weights of passes whose gradients are added up before they are reduced."""

    def add(self, weight: Any) -> None:
        """Adds the weight of a pass, from `KerasBackend.as_weight`."""

    def take(self) -> Any:
        """The sum, which is 0 again after that."""


class KerasBackend(Protocol):
    """One Keras backend. Tensors are that framework's throughout; errors are those of `hvdlite.ops`."""

    @property
    def name(self) -> str:
        """As Keras calls it: ``"tensorflow"``, ``"torch"`` or ``"jax"``."""

    @property
    def traces_steps(self) -> bool:
        """Is it known when a step is traced which gradients are None, so that all ranks have None in the same places?"""

    def is_eager(self, tensors: Sequence[Any]) -> bool:
        """Have these tensors values, outside of any program that is being traced?"""

    def check_supported(self) -> None:
        """Called when an optimizer is wrapped.

        Raises:
            UnsupportedError: the framework itself distributes the training (``tf.distribute``, ``keras.distribution``),
                or this installation of it cannot be served; the text says what to do.
        """

    def reduce_gradients(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        names: Sequence[str],
        groups: Sequence[Sequence[int]] | None,
        reduction: Reduction,
        weight: Any = None,
    ) -> list[Any]:
        """Reduces the gradients of one step over the ranks of the set. Collective over it.

        Called eagerly or while a step is traced (``tf.function``, ``jax.jit``, both with XLA too), by a rank of the set,
        with the same names in the same order on all of them, and shapes and dtypes that have been compared.

        Args:
            gradients: of the backend's type, sparse ones (``tf.IndexedSlices``) among them, not modified; None where the
                loss does not depend on the variable. If `traces_steps`, all ranks have None in the same places.
            variables: those that the gradients belong to.
            names: for the engine, unique among what can be in flight.
            groups: places in `gradients`: each of the lists is agreed on and sent together, places in no list by
                themselves. None: whatever suits the backend, the same on all ranks and in all runs.
            reduction: how.
            weight: of this rank in weighted means, from `as_weight`. All ranks give one, or none.

        Returns:
            The results in order, with shapes and dtypes of the gradients, the same bits on all ranks. None where the
            gradient is None on all ranks.
        """

    def as_weight(self, weight: Any, op: int) -> Any:
        """A rank's weight as `reduce_gradients` takes it.

        Args:
            weight: a number of 0 or more, or a scalar tensor of the backend, which may be traced.
            op: the reduce operator.

        Raises:
            InvalidArgumentError: it is something else, or the reduction is no mean.
        """

    def new_weight_total(self) -> WeightTotal:
        """Adds up the weights of passes that are reduced together.

        Raises:
            UnsupportedError: this backend cannot, because its steps keep nothing but the optimizer's variables.
        """

    def broadcast_from(
        self,
        variables: Sequence[Any],
        roots: Sequence[int],
        names: Sequence[str],
        process_set: ProcessSet,
        gradients: Sequence[Any],
        complete: Any,
    ) -> list[Any]:
        """Gives all ranks of the set the values that one of them has of each variable. Called as `reduce_gradients` is.

        Args:
            variables: of Keras or the framework; as many on all ranks, of the same shapes and dtypes.
            roots: for each the rank in the job that has the value.
            names: as for `reduce_gradients`.
            process_set: the ranks that take part.
            gradients: what comes before, as `reduce_gradients` gave it.
            complete: with gradient accumulation: is the step complete? What is traced for other steps too (on JAX) sends
                nothing then.

        Returns:
            The values, which the caller assigns; None where the variable has it already.
        """

    def compare_when_run(
        self, gradients: Sequence[Any], variables: Sequence[Any], reduction: Reduction, start_check: str
    ) -> AbstractContextManager[Any]:
        """Where a program that is traced applies gradients in a loop of its own: a context, for the reduction of these
        gradients, in front of which the program compares the ranks' variables whenever it runs (`hvdlite.start_check`).
        Nothing is compared where such a program cannot call Python.
        """

    def scale(self, gradient: Any, factor: float) -> Any:
        """The gradient, sparse or not, multiplied by a number; its dtype stays."""

    def allreduce(
        self,
        value: Any,
        name: str | None,
        op: int,
        prescale_factor: float,
        postscale_factor: float,
        compression: Any,
    ) -> Any:
        """Reduces a value over all ranks.

        Args:
            value: a tensor or variable of the backend, or anything of which it makes a tensor: numbers, arrays, lists.
            name: as for `hvdlite.allreduce`.
            op: as for `hvdlite.allreduce`.
            prescale_factor: as for `hvdlite.allreduce`.
            postscale_factor: as for `hvdlite.allreduce`.
            compression: as for `hvdlite.allreduce`.

        Returns:
            A tensor of the backend, on the value's device.
        """

    def allgather(self, value: Any, name: str | None) -> Any:
        """Concatenates all ranks' values along the first dimension; arguments and result as for `allreduce`."""

    def broadcast(self, value: Any, root_rank: int, name: str | None) -> Any:
        """Gives all ranks the root's value; arguments and result as for `allreduce`."""

    def reducescatter(self, value: Any, name: str | None, op: int) -> Any:
        """Reduces a value and leaves each rank with its part of the rows; arguments and result as for `allreduce`."""

    def other_variables(self, model: Any) -> list[Any]:
        """What a model holds of the framework's own kind and Keras does not count among its weights, without random seeds.

        Returns:
            Objects for `hvdlite.keras.variables`, in an order that is the same on all ranks: ``tf.Variable``, or
            `hvdlite.keras.variables.Held`.
        """

    def loss_in(self, error: Exception) -> HorovodInternalError | None:
        """The error of hvdlite behind one of the framework, if it means that a rank is lost (`hvdlite.elastic.LossIn`)."""


def partition(groups: Sequence[Sequence[int]] | None, present: Sequence[int]) -> list[list[int]]:
    """Divides the indices of the gradients that are present into groups.

    Args:
        groups: lists of indices, as for `KerasBackend.reduce_gradients`; None: all gradients are in one group.
        present: the indices of the gradients that are reduced, in order.

    Returns:
        The groups that are not empty. An index in no list is a group of its own.

    """
    if groups is None:
        return [list(present)] if present else []
    chosen = [[place for place in members if place in present] for members in groups]
    grouped = {place for members in chosen for place in members}
    return [members for members in chosen if members] + [[place] for place in present if place not in grouped]


@cache
def current_backend() -> KerasBackend:
    """The backend that Keras runs on, which a process cannot change.

    Raises:
        UnsupportedError: hvdlite has nothing for this one.
    """
    name: str = keras.backend.backend()
    if name not in _BACKENDS:
        raise UnsupportedError(
            f"Keras runs on its backend {name!r}, on which hvdlite cannot train: set KERAS_BACKEND to one of "
            f"{', '.join(_BACKENDS)}"
        )
    backend: KerasBackend = import_module(f"hvdlite.keras.backends.{name}").make_backend()
    return backend
