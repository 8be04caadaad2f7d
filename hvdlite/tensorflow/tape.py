"""Tapes that reduce their gradients over the ranks."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from hvdlite.compression import Compression
from hvdlite.errors import InvalidArgumentError
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Average, Kind, Sum
from hvdlite.start_check import mode_of
from hvdlite.tensorflow import collective_ops
from hvdlite.tensorflow.arguments import Reduction
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.gradients import Gradient
from hvdlite.tensorflow.names import collective_name, normalise
from hvdlite.tensorflow.start_check import TAPE, ReducerWording, after_comparison
from hvdlite.tensorflow.tensors import as_weight, shares_of
from hvdlite.tensorflow.variables import identity_of

_Pairs = list[tuple[Any, Gradient]]


def gradient_names(variables: Sequence[Any], generic: bool = False) -> list[str]:
    """Names for the gradients of variables: from the names of the variables, or (`generic`) from their indices.

    Variables with the same name get the same name here. In graphs `collective_name` then adds numbers to the names.
    """
    if generic:
        return [f"grad_{place}" for place in range(len(variables))]
    return [f"gradient/{_name_of(variable, place)}" for place, variable in enumerate(variables)]


def _name_of(variable: Any, place: int) -> str:
    # In Keras 3 many variables have the name "kernel", but their paths differ. Eager tensors have no name.
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or f"source_{place}"
    return normalise(str(name).removesuffix(":0"))


class LocalSources:
    """The local sources: variables (or tensors) whose gradients are not reduced.

    Args:
        scale: True: divide these gradients by the number of ranks, or with weights multiply them by this rank's share of all
            weights. Then they have the scale of gradients that are averages over the ranks. With op=Sum they are divided, too.
        process_set: the ranks that are counted. A rank outside of the process set scales nothing.

    """

    def __init__(self, scale: bool, process_set: ProcessSet) -> None:
        self._scale = scale
        self._process_set = process_set
        self._sources: dict[int, Any] = {}

    def add(self, source: Any) -> None:
        """Adds a source: its gradient is not reduced from now on."""
        self._sources[identity_of(source)] = source

    def __contains__(self, source: Any) -> bool:
        return identity_of(source) in self._sources

    def finish(self, gradients: Sequence[Gradient], weight: tf.Tensor | None = None) -> list[Gradient]:
        """The gradients of local sources, scaled if `scale` is True. Collective over the process set if there is a weight."""
        found = [gradient for gradient in gradients if gradient is not None]
        if not found or not self._scale or self._process_set.included() is False:
            return list(gradients)
        set_id = self._process_set.require_member(Kind.ALLREDUCE)
        ranks = collective_ops.size(set_id)
        weights = weight
        if weight is not None:
            name = collective_name(None, "local_sources.weights")
            weights = collective_ops.allreduce(weight, name=name, op=Sum, set_id=set_id)

        def scaled(values: tf.Tensor) -> tf.Tensor:
            return values / tf.cast(ranks, values.dtype) if weight is None else shares_of([values], weight, weights)[0]

        return [
            tf.IndexedSlices(scaled(gradient.values), gradient.indices, gradient.dense_shape)
            if isinstance(gradient, tf.IndexedSlices)
            else None
            if gradient is None
            else scaled(gradient)
            for gradient in gradients
        ]


@dataclass
class Wrapping:
    """How a tape or an optimizer reduces its gradients.

    Attributes:
        reduction: the user's arguments.
        local: the variables whose gradients are not reduced.
        start_check: the reaction if the ranks' variables differ, from `hvdlite.start_check.mode_of`.
        weight: the weight of this rank's gradients; None: all ranks have the same weight.

    """

    reduction: Reduction
    local: LocalSources
    start_check: str
    weight: tf.Tensor | None = None

    def compared(self, evidence: Any, sources: Sequence[Any], reducer: ReducerWording) -> AbstractContextManager[Any]:
        """A context. Operations that are made in it run after the ranks have compared their variables."""
        shared = [source for source in sources if source not in self.local]
        return after_comparison(shared, evidence, self.reduction.process_set, self.start_check, reducer)

    def reduce(
        self, gradients: Sequence[Gradient], sources: Sequence[Any], names: Sequence[str], weight: tf.Tensor | None
    ) -> list[Gradient]:
        """All gradients in order: reduced, or for local sources the results of `finish`. Collective over the process set."""
        shared = [place for place, source in enumerate(sources) if source not in self.local]
        local = [place for place, source in enumerate(sources) if source in self.local]
        mine, variables, own_names = ([values[place] for place in shared] for values in (gradients, sources, names))
        found = dict(zip(shared, self.reduction.apply(mine, variables, own_names, weight), strict=True))
        found.update(zip(local, self.local.finish([gradients[place] for place in local], weight), strict=True))
        return [found[place] for place in range(len(gradients))]


class _DistributedGradientTape:
    """The mixin for tapes: reduces the gradients that `gradient` returns."""

    _hvdlite: Wrapping

    def register_local_source(self, source: Any) -> None:
        """Excludes the gradient of this variable (or tensor) from the reduction."""
        self._hvdlite.local.add(source)

    @as_written
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        *,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        weight: Any = None,
    ) -> Any:
        """As ``tf.GradientTape.gradient``, but the gradients are reduced over the ranks. Collective over the process set.

        Args:
            target: as for ``tf.GradientTape.gradient``.
            sources: as for ``tf.GradientTape.gradient``.
            output_gradients: as for ``tf.GradientTape.gradient``.
            use_generic_names: True: the names of the gradients in the engine come from their indices, not from the variables.
                This is for models whose variables have different names on different ranks.
            unconnected_gradients: as for ``tf.GradientTape.gradient``.
            weight: the weight of this rank's gradients, see `DistributedGradientTape`. None: the weight of the tape.

        Returns:
            The gradients, in the structure of `sources`. Gradients of local sources are this rank's own. With
            `scale_local_gradients` they are divided by the number of ranks, or multiplied by this rank's share of all weights.

        Raises:
            InvalidArgumentError, UnsupportedError, tf.errors.OpError: as for
                `hvdlite.tensorflow.gradients.allreduce_gradients`.
            MismatchError: the ranks' variables differ after the first update, and `start_check` is "error".

        """
        flat = tf.nest.flatten(sources)
        # The weight is checked first, because a tape that is not persistent gives its gradients only once.
        weight = self._hvdlite.weight if weight is None else as_weight(weight, self._hvdlite.reduction.op)
        own = self._hvdlite_plain().gradient(target, flat, output_gradients, unconnected_gradients)
        names = gradient_names(flat, use_generic_names)
        with self._hvdlite.compared(target, flat, TAPE):
            reduced = self._hvdlite.reduce(own, flat, names, weight)
        return tf.nest.pack_sequence_as(sources, reduced)

    @as_written
    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        *,
        weight: Any = None,
    ) -> tuple[_Pairs, _Pairs]:
        """As `gradient`, but returns two lists of (source, gradient): one of local sources, and one of the other sources."""
        flat = tf.nest.flatten(sources)
        gradients = self.gradient(target, flat, output_gradients, use_generic_names, weight=weight)
        pairs = list(zip(flat, gradients, strict=True))
        local = [pair for pair in pairs if pair[0] in self._hvdlite.local]
        return local, [pair for pair in pairs if pair[0] not in self._hvdlite.local]

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As ``tf.GradientTape.jacobian``. It is not reduced."""
        return self._hvdlite_plain().jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As ``tf.GradientTape.batch_jacobian``. It is not reduced."""
        return self._hvdlite_plain().batch_jacobian(*args, **kwargs)

    def _hvdlite_plain(self) -> Any:
        """An object of the tape's original class that shares this tape's state."""
        base: Any = type(self).__mro__[2]
        plain = base.__new__(base)
        plain.__dict__ = self.__dict__
        return plain


@as_written
def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    start_check: str | None = None,
    *,
    weight: Any = None,
) -> Any:
    """Makes a tape with the recording of the given tape. Its `gradient` reduces the gradients over the ranks.

    Args:
        gradtape: a ``tf.GradientTape``. It may be recording, have finished, or not have begun. It is not changed.
        device_dense: accepted for compatibility with Horovod; TensorFlow chooses the devices.
        device_sparse: accepted for compatibility with Horovod; TensorFlow chooses the devices.
        compression: a class with the methods of `hvdlite.compression.Compressor`, a codec, or `Compression.auto`.
        sparse_as_dense: True: make IndexedSlices dense before they are reduced.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: with Average, a factor that divides the gradients before the sum and multiplies the result.
        num_groups: deprecated, see `groups`.
        groups: a number of groups in which the gradients are reduced, or lists of variables whose gradients are reduced
            together.
        process_set: the ranks that take part. On other ranks gradients are not reduced.
        scale_local_gradients: True: divide the gradients of local sources (see `register_local_source`) by the number of ranks.
        start_check: the reaction if the ranks' variables differ after the first update (docs/sharp_edges.md): "error",
            "broadcast", "warn" or "off"; None: the knob HVDLITE_START_CHECK decides.
        weight: the weight of this rank's gradients, with op Average only: a number of 0 or more or a scalar tensor, such as the
            number of samples in the rank's batch. The reduced gradients are ``sum(weight * gradient) / sum(weight)`` over the
            ranks, so they equal those of one process with the whole batch. Either all ranks have a weight, or none. A rank of
            weight 0 contributes nothing, even if its gradients are infinite or NaN. A weight that is not known yet can be
            passed to `gradient` later.

    Returns:
        An object of the tape's class with the methods `gradient`, `register_local_source` and
        `get_local_and_global_gradients`. Jacobians are not reduced.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnsupportedError: the compression keeps state from one training step to the next.

    """
    if not isinstance(gradtape, tf.GradientTape) or isinstance(gradtape, _DistributedGradientTape):
        raise InvalidArgumentError(f"DistributedGradientTape takes a plain tf.GradientTape, got {gradtape!r}")
    base = type(gradtape)
    kind: Any = type(base.__name__, (_DistributedGradientTape, base), {"__doc__": _DistributedGradientTape.__doc__})
    tape = kind.__new__(kind)
    tape.__dict__.update(gradtape.__dict__)
    reduction = Reduction(op, gradient_predivide_factor, compression, sparse_as_dense, groups or num_groups, process_set)
    local, mode = LocalSources(scale_local_gradients, process_set), mode_of(start_check, "DistributedGradientTape")
    tape._hvdlite = Wrapping(reduction, local, mode, None if weight is None else as_weight(weight, reduction.op))
    return tape


@as_written
def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    start_check: str | None = None,
    *,
    weight: Any = None,
) -> Any:
    """As `DistributedGradientTape`, but does not reduce the gradients of some layers.

    Args:
        gradtape: as for `DistributedGradientTape`.
        device_dense: as for `DistributedGradientTape`.
        device_sparse: as for `DistributedGradientTape`.
        compression: as for `DistributedGradientTape`.
        sparse_as_dense: as for `DistributedGradientTape`.
        op: as for `DistributedGradientTape`.
        gradient_predivide_factor: as for `DistributedGradientTape`.
        num_groups: as for `DistributedGradientTape`.
        groups: as for `DistributedGradientTape`.
        process_set: as for `DistributedGradientTape`.
        local_layers: a built layer of Keras, or a list of built layers. Their trainable weights become local sources.
        scale_local_gradients: as for `DistributedGradientTape`.
        start_check: as for `DistributedGradientTape`.
        weight: as for `DistributedGradientTape`.

    Raises:
        InvalidArgumentError: an argument is wrong, or a layer is not built yet.
        UnsupportedError: as for `DistributedGradientTape`.

    """
    given = dict(locals())  # all arguments, by name
    del given["local_layers"]
    tape = DistributedGradientTape(**given)
    for layer in tf.nest.flatten(local_layers) if local_layers is not None else ():
        if not getattr(layer, "built", False):
            raise InvalidArgumentError(
                f"the local layer {layer!r} is no built layer of Keras: call the layer once, or its build(), before"
            )
        for weight in layer.trainable_weights:
            tape.register_local_source(weight)
    return tape
