"""`DistributedOptimizer`: makes a Keras optimizer train on the gradients of all ranks.

The optimizer stays the same object. Only its class is replaced, by a subclass that reduces the gradients in the method through
which Keras applies them. So the optimizer keeps its variables and its iterations, and it is saved under its original class.
Over 400 lines, because the wrapper has a method for each way in which Keras calls an optimizer.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hvdlite.checks import check_passes, check_process_set
from hvdlite.compression import Compression, check_compression
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.keras import arguments
from hvdlite.keras.backends import Reduction, current_backend
from hvdlite.keras.library import KERAS_3, Mixin, keras
from hvdlite.keras.loss_weights import follow_losses
from hvdlite.keras.reducer import Reducer, Settings
from hvdlite.keras.sharding import KerasShardedState, ShardedSteps, check_shard
from hvdlite.keras.start_check import follow_batches
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Average
from hvdlite.runtime import RUNTIME
from hvdlite.start_check import mode_of

# For each process set (the key is its ranks): the serial number of the next optimizer. All ranks of the set wrap their
# optimizers in the same order, so an optimizer has the same number on all of them. Ranks outside of the set need not wrap the
# optimizer.
_serials: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)
_class_of_object: Any = object.__dict__["__class__"]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    num_groups: int = 0,
    groups: int | Sequence[Iterable[Any]] | None = None,
    *,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    auto_scale_loss: bool = True,
    start_check: str | None = None,
    shard: bool = False,
    weighted: bool = False,
) -> Any:
    """Makes an optimizer train on the gradients of all ranks, in ``fit`` and in your own training steps.

    ``apply`` and ``apply_gradients`` of the wrapped optimizer reduce their gradients before Keras uses them. So clipping,
    weight decay, averaging of weights and loss scaling get the reduced gradients, with the same bits on every rank. Compile the
    model with the returned optimizer. Some details:

    - Under the policy ``mixed_float16`` the optimizer is put into Keras's LossScaleOptimizer *before* it is wrapped. So
      ``compile()`` adds no second one. An overflow on one rank makes all ranks skip the step.
    - With ``gradient_accumulation_steps`` each rank adds up the gradients of several backward passes, and the ranks reduce the
      sums once for each update (with loss scaling they reduce the gradients of every pass).
    - The optimizer is saved as a plain optimizer of Keras. It can be loaded without hvdlite, and wrapped again to continue.

    Applying gradients is collective over `process_set`. The ranks must have variables with the same shapes and dtypes in the
    same order (they are compared before the first reduction), and must take the same number of steps. All ranks must wrap
    their optimizers in the same order.

    Args:
        optimizer: an optimizer of Keras. It is changed in place. Wrapping it again replaces the first wrapping.
        name: a name of the optimizer, the same on all ranks. Error texts and names of operations contain it.
        device_dense: accepted for compatibility with Horovod; not used.
        device_sparse: accepted for compatibility with Horovod; not used.
        compression: `Compression.none`, `fp16`, `bf16`, or a class with their methods; a codec such as ``Compression.int8()``;
            or `Compression.auto`, which chooses a compression by a measurement.
        sparse_as_dense: make sparse gradients dense, instead of gathering their rows.
        gradient_predivide_factor: with Average, a factor that divides the gradients before the sum and multiplies the result.
        op: `Average` or `Sum`.
        num_groups: Horovod's older name of an integer `groups`; deprecated.
        groups: lists of variables whose gradients are reduced together, or a number of groups. None: the backend chooses.
        backward_passes_per_step: number of backward passes whose gradients are added up on each rank before they are reduced
            and applied. With Keras 3 this number is stored as the optimizer's own ``gradient_accumulation_steps``. With Keras 2
            the accumulated gradients are not saved with the optimizer.
        average_aggregated_gradients: divide the accumulated gradients by `backward_passes_per_step`.
        process_set: the ranks that train together. On a rank outside of the set nothing is reduced.
        scale_local_gradients: divide gradients that `register_local_var` keeps on this rank by the number of ranks.
        auto_scale_loss: under the policy ``mixed_float16`` put the optimizer into a LossScaleOptimizer, as ``compile()`` does
            if its argument of this name is True.
        start_check: the reaction if the variables of the ranks' models or optimizers differ. The ranks compare them after the
            first batch of ``fit``, or before the second update in your own loop (docs/sharp_edges.md); with `shard` they also
            compare before the first update.
            "error": a MismatchError is raised. "warn": a warning is logged. "broadcast": a warning is logged, and all ranks get
            the values of the first rank. "off": nothing is compared. None: the knob HVDLITE_START_CHECK decides.
        shard: each variable is updated by one rank of the set, and only this rank keeps the optimizer's slots for it, such as
            momentum (Keras 3 only; docs/sharding.md). Weights have the same bits as without `shard`. All ranks must take part
            when the model is saved; the model is saved as a plain model.
        weighted: the weight of a rank's gradients is the divisor of the rank's loss (Keras 3 only): the number of elements in
            its batch that no mask leaves out, or with reduction="mean_with_sample_weight" the sum of the sample weights. Then
            ``fit`` on batches of different sizes has the result of one process with the whole batch. The loss must be one of
            ``keras.losses`` (or one that ``compile`` makes from a name or function) with a value for each sample. If a step
            computes several losses, the divisor of the last one counts. In your own loop set ``optimizer.weight`` instead.

    Returns:
        The wrapped optimizer: `optimizer`, or the LossScaleOptimizer into which it was put. It has a method
        ``register_local_var(variable)`` and an attribute ``weight``.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnsupportedError: Keras or its framework distributes the training by itself, or cannot do what an argument asks for.
        NotInitializedError: `init` has not been called.

    Applying gradients can raise MismatchError (the ranks' variables or settings differ) and HorovodInternalError (a rank
    failed). Under TensorFlow a subclass of ``tf.errors.OpError`` may be raised instead.

    """
    del device_dense, device_sparse
    if auto_scale_loss:
        optimizer = arguments.scaled(optimizer)
    arguments.check_optimizer(optimizer)
    check_compression(compression)
    op = arguments.checked_op(op, gradient_predivide_factor)
    check_passes(backward_passes_per_step)
    arguments.check_weighted_by_loss(weighted, op)
    settings = Settings(
        name=name or "optimizer",
        reduction=Reduction(
            op=op,
            prescale=1.0 / gradient_predivide_factor,
            postscale=float(gradient_predivide_factor),
            compression=compression,
            sparse_as_dense=bool(sparse_as_dense),
            process_set=process_set,
        ),
        groups=arguments.checked_groups(arguments.chosen_groups(num_groups, groups)),
        passes=backward_passes_per_step,
        averages_passes=bool(average_aggregated_gradients),
        scale_local=bool(scale_local_gradients),
        start_check=mode_of(start_check, "DistributedOptimizer"),
        shard=shard,
        weighted=weighted,
    )
    _wrap(optimizer, settings)
    return optimizer


def PartialDistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Iterable[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    auto_scale_loss: bool = True,
    start_check: str | None = None,
) -> Any:
    """As `DistributedOptimizer`, but does not reduce the gradients of some layers, so that these layers differ between ranks.

    Args:
        optimizer: as for `DistributedOptimizer`.
        name: as for `DistributedOptimizer`.
        device_dense: as for `DistributedOptimizer`.
        device_sparse: as for `DistributedOptimizer`.
        compression: as for `DistributedOptimizer`.
        sparse_as_dense: as for `DistributedOptimizer`.
        gradient_predivide_factor: as for `DistributedOptimizer`.
        op: as for `DistributedOptimizer`.
        backward_passes_per_step: as for `DistributedOptimizer`.
        average_aggregated_gradients: as for `DistributedOptimizer`.
        groups: as for `DistributedOptimizer`.
        process_set: as for `DistributedOptimizer`.
        local_layers: a layer, or a list of layers; they need not be built yet. Also pass their weights to
            `BroadcastGlobalVariablesCallback` as `local_variables`.
        scale_local_gradients: divide the gradients of the local layers by the number of ranks, as if the other ranks had
            gradients of zero.
        auto_scale_loss: as for `DistributedOptimizer`.
        start_check: as for `DistributedOptimizer`.

    Raises:
        InvalidArgumentError: an element of `local_layers` is no layer; or as for `DistributedOptimizer`.
        UnsupportedError, NotInitializedError: as for `DistributedOptimizer`.

    """
    given = dict(locals())  # all arguments, by name
    layers = arguments.checked_layers(given.pop("local_layers"))
    wrapped = DistributedOptimizer(**given)
    wrapped._hvdlite.add_local(layers=layers)
    return wrapped


def _wrap(optimizer: Any, settings: Settings) -> None:
    """Wraps an optimizer. Arguments that are refused are refused before the optimizer changes."""
    RUNTIME.require_topology()
    process_set, passes = settings.reduction.process_set, settings.passes
    check_process_set(process_set)
    check_shard(settings.shard, optimizer)
    backend = current_backend()
    backend.check_supported()
    if settings.weighted:
        follow_losses()
    if KERAS_3 and passes > 1:
        arguments.accumulate(optimizer, passes)
    reducer = Reducer(replace(settings, serial=next(_serials[tuple(process_set.ranks or ())])), backend, optimizer)
    reducer.wrap_alike = lambda other: _wrap(other, settings)
    follow_batches()
    if not KERAS_3 and passes > 1:
        from hvdlite.tensorflow.aggregation import LocalAggregation

        sparse_as_dense = settings.reduction.sparse_as_dense
        reducer.aggregation = LocalAggregation(passes, settings.averages_passes, sparse_as_dense, reducer.reduce)
    mixins: tuple[type[Any], ...] = (_Keras3 if KERAS_3 else _Keras2,)
    members: dict[str, Any] = {"_hvdlite": reducer}
    if reducer.shards is not None:
        reducer.shards.split()
        members["_hvdlite_shards"] = reducer.shards
        inner = reducer.shards.optimizer
        if inner is not optimizer:
            _swap_class(inner, (ShardedSteps,), {"_hvdlite_shards": reducer.shards})
        mixins = (ShardedSteps if inner is optimizer else KerasShardedState, *mixins)
    _swap_class(optimizer, mixins, members)


def is_distributed(optimizer: Any) -> bool:
    """Whether this optimizer is wrapped, so that it reduces its gradients."""
    return isinstance(optimizer, _Distributed)


def _swap_class(optimizer: Any, mixins: Sequence[type[Any]], members: dict[str, Any]) -> None:
    """Replaces the optimizer's class by a subclass with mixins. Keras still sees and saves the optimizer's own class."""
    kind: Any = type(optimizer)
    base = getattr(kind, "_hvdlite_base", kind)
    described = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_hvdlite_base": base,
        # Keras reads this attribute to find the class under which the optimizer is registered and saved.
        "__class__": property(lambda self: base),
    }
    _class_of_object.__set__(optimizer, type(base.__name__, (*mixins, base), {**described, **members}))


class _Distributed(Mixin):
    """The mixin for optimizers of any Keras. `_swap_class` sets both attributes in the subclass that it makes."""

    _hvdlite: Reducer
    _hvdlite_base: type[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Makes an optimizer that is wrapped with the same arguments. ``from_config`` of a wrapped optimizer calls this."""
        super().__init__(*args, **kwargs)
        self._hvdlite.wrap_alike(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies the optimizer as a plain optimizer of its original class."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, args, *rest = reduced
        if getattr(function, "__self__", None) is type(self):  # a class method of Keras, bound to this class
            function = getattr(self._hvdlite_base, function.__name__)
        return (function, tuple(self._hvdlite_base if arg is type(self) else arg for arg in args), *rest)

    def register_local_var(self, var: Any) -> None:
        """Excludes the gradient of a variable from the reduction."""
        self._hvdlite.add_local([var])

    @property
    def weight(self) -> Any:
        """The weight of this rank's gradients in the mean over the ranks; None: all ranks have the same weight.

        It is a number of 0 or more, or a scalar tensor of Keras's backend, for example the number of samples in this rank's
        batch. Set it before the gradients are applied; in a compiled training step set it within that step. It is kept until it
        is set again. The reduced gradients are ``sum(weight * gradient) / sum(weight)`` over the ranks. So with numbers of
        samples as weights they equal the gradients of one process with the whole batch. Either all ranks have a weight, or
        none. A rank of weight 0 contributes nothing, even if its gradients are infinite or NaN. If the gradients of several
        backward passes are added up before they are reduced, the weights of these passes are added up, too (on JAX
        UnsupportedError is raised).

        Setting the weight raises InvalidArgumentError for another value, for an op other than Average, or with
        ``weighted=True``.
        """
        return self._hvdlite.weight

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # otherwise Keras and TensorFlow would track the value
            self._hvdlite.weigh(value)
            return
        # When a loss scaler of Keras is made, it first sets one of these two attributes of its inner optimizer. (An optimizer's
        # own __init__ may set loss_scale_factor, too, but then the optimizer does not have this attribute yet.)
        scaled = name == "loss_scale_factor" and value is None and hasattr(self, name)
        if scaled or (name == "_is_wrapped_by_loss_scale_optimizer" and value):
            raise UnsupportedError(
                "a LossScaleOptimizer around hvdlite's DistributedOptimizer would look for an overflow on this rank alone, and "
                "the ranks' weights would differ. Put it inside: DistributedOptimizer(keras.mixed_precision."
                "LossScaleOptimizer(opt)), or set the policy mixed_float16 before you call DistributedOptimizer, which then "
                "adds it. (compile() adds one for a model of this policy, unless the optimizer is a LossScaleOptimizer)"
            )
        super().__setattr__(name, value)


class _Keras3(_Distributed):
    """The mixin for Keras 3, which applies all gradients through `apply`, except in the loss scaler on JAX."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces the gradients and applies them. Gradients that are accumulated are reduced later, in `_clip_gradients`."""
        grads = list(grads)
        known = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if len(known) != len(grads):
            raise InvalidArgumentError(
                f"apply() got {len(grads)} gradients for {len(known)} variables; pass one for each variable, and pass the "
                "variables too unless the optimizer is built"
            )
        if self._accumulation_steps():
            self._hvdlite.begin_pass()
        else:
            grads = self._hvdlite.reduce(grads, known, self._hvdlite.weight_of_pass())
        return super().apply(grads, trainable_variables)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Reduces the gradients of a loss scaler, whose `stateless_apply` does not call `apply`."""
        if arguments.scales_loss(self):
            grads = self._hvdlite.reduce(list(grads), self._trainable_variables, self._hvdlite.weight_of_pass())
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _accumulation_steps(self) -> int:
        """The number of backward passes whose gradients this optimizer adds up before it applies them; 0: no accumulation."""
        return getattr(self, "gradient_accumulation_steps", None) or 0

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        """Keeps the variables for `_clip_gradients`. Keras calls this method with the gradients of one pass."""
        self._hvdlite.accumulated = trainable_variables
        return super()._backend_apply_gradients(grads, trainable_variables)

    def _backend_increment_gradient_accumulators(self, *grads: Any) -> None:
        super()._backend_increment_gradient_accumulators(*grads)
        self._hvdlite.add_weight()

    def _backend_reset_gradient_accumulators(self) -> None:
        super()._backend_reset_gradient_accumulators()
        self._hvdlite.reset_weights()

    def _clip_gradients(self, grads: Any) -> Any:
        """Reduces accumulated gradients. Keras calls this method in the last pass of a step, and on JAX in every pass."""
        reducer, steps = self._hvdlite, self._accumulation_steps()
        if steps and keras.backend.backend() == "jax":
            complete = (self._iterations + 1) % steps == 0
            grads = keras.ops.cond(complete, lambda: reducer.reduce(grads, reducer.accumulated), lambda: list(grads))
        elif steps:
            grads = reducer.reduce(grads, reducer.accumulated, reducer.added_weight())
        return super()._clip_gradients(grads)


class _Keras2(_Distributed):
    """The mixin for Keras 2, which applies all gradients through `apply_gradients`."""

    @property
    def _agg_helper(self) -> Any:
        """The object that adds up gradients. It has the name that Horovod gives it, because programs read its ``counter``."""
        return self._hvdlite.aggregation

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduces the gradients and applies them.

        Gradients are not reduced if `_compute_gradients` has reduced them, or if the caller says that they are reduced.
        ``iterations`` counts all passes, as in Horovod, even passes after which nothing is applied.
        """
        pairs = list(grads_and_vars)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        is_computed = self._hvdlite.take_computed(gradients)
        done = kwargs.get("skip_gradients_aggregation") or not kwargs.get("experimental_aggregate_gradients", True)
        if not pairs or (done and not is_computed):
            return super().apply_gradients(pairs, *args, **kwargs)
        reduced = gradients if is_computed else self._reduced(gradients, variables)
        apply = functools.partial(super().apply_gradients, zip(reduced, variables, strict=True), *args, **kwargs)
        aggregation = self._hvdlite.aggregation
        if aggregation is None:
            return apply()
        import tensorflow as tf  # Keras 2 has no other backend

        # tf.group makes operations without a value, because a pass that completes no step has no value.
        return aggregation.apply(
            reduced, lambda: tf.group(apply()), lambda: tf.group(self.iterations.assign_add(1, read_value=False))
        )

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> list[tuple[Any, Any]]:
        """The reduced gradients with their variables. Programs and Keras's older optimizers call this private method."""
        base: Any = super()
        if hasattr(base, "_compute_gradients"):
            pairs = base._compute_gradients(loss, var_list, grad_loss, tape)
        else:
            pairs = base.compute_gradients(loss, var_list, tape)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        computed = self._hvdlite.computed = self._reduced(gradients, variables)
        return list(zip(computed, variables, strict=True))

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """The gradients, reduced over the ranks; or, with aggregation, added up until a step is complete."""
        reducer, weight = self._hvdlite, self._hvdlite.weight_of_pass()
        add = reducer.reduce if reducer.aggregation is None else reducer.aggregation.add
        return list(add(gradients, variables, weight))
