"""`DistributedOptimizer`: makes a Keras optimizer train on the gradients of all ranks.

The optimizer stays the same object. Only its class is replaced by one that reduces the gradients in the method through which
Keras applies them. So its variables and its iterations survive, and it is saved under its own class. Over 400 lines, because
the wrapper has a method for each way in which Keras calls an optimizer.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hvdlite.checks import check_passes, check_process_set
from hvdlite.compression import Compression, check_compression
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.keras import arguments
from hvdlite.keras.backends import Reduction, current_backend
from hvdlite.keras.library import KERAS_3, keras
from hvdlite.keras.loss_weights import follow_losses
from hvdlite.keras.reducer import Reducer, Settings
from hvdlite.keras.sharding import KerasShardedState, ShardedSteps, check_shard
from hvdlite.keras.start_check import follow_batches
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Average
from hvdlite.runtime import RUNTIME
from hvdlite.start_check import mode_of

if TYPE_CHECKING:
    from collections.abc import Callable

    class _Optimizer:
        """What is used of Keras's optimizers, into subclasses of which the classes below are mixed."""

        gradient_accumulation_steps: int | None
        iterations: Any
        _iterations: Any
        _trainable_variables: Sequence[Any]
        apply: Callable[..., Any]
        apply_gradients: Callable[..., Any]
        stateless_apply: Callable[..., Any]
        _backend_apply_gradients: Callable[..., Any]
        _clip_gradients: Callable[..., Any]
else:
    _Optimizer = object

__all__ = ["DistributedOptimizer", "PartialDistributedOptimizer", "is_distributed", "wrap"]

# Of the optimizers by the ranks of their process set, all of which make them in the same order; others may not make them.
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
    """Makes an optimizer train on the gradients of all ranks, in ``fit`` and in training steps of your own.

    It reduces the gradients that ``apply`` and ``apply_gradients`` get before Keras uses them, so that clipping, weight decay,
    averaging of weights and loss scaling see the gradients of all ranks, with the same bits everywhere. Compile the model with
    what this returns. In particular:

    - Under the policy ``mixed_float16`` the optimizer is put into Keras's LossScaleOptimizer *before* it is wrapped, and
      ``compile()`` leaves it alone then. An overflow on one rank makes all ranks skip the step.
    - With ``gradient_accumulation_steps`` gradients are added up on each rank and reduced once per accumulated step (with loss
      scaling, in every pass).
    - What is saved is the plain optimizer: it can be loaded without hvdlite, and wrapped again to go on.

    Collective over `process_set` when gradients are applied: the ranks have the same variables by shape and dtype, in the same
    order (compared when the optimizer meets them first), and take the same number of steps. Optimizers are wrapped in the
    same order on all ranks.

    Args:
        optimizer: an optimizer of Keras. It is changed in place; wrapping it again replaces the first wrapping.
        name: for messages.
        device_dense: accepted for compatibility with Horovod; not used.
        device_sparse: accepted for compatibility with Horovod; not used.
        compression: `Compression.none`, `fp16`, `bf16`, or a class with their methods; a codec such as ``Compression.int8()``;
            or `Compression.auto`, which chooses one by a measurement.
        sparse_as_dense: make sparse gradients dense, instead of gathering their rows.
        gradient_predivide_factor: with Average only, divides the gradients before the sum and multiplies the result.
        op: `Average` or `Sum`.
        num_groups: Horovod's older name of an integer `groups`; deprecated.
        groups: lists of variables whose gradients are reduced together, or the number of groups to cut them into. Default:
            what suits the backend of Keras.
        backward_passes_per_step: gradients of so many steps are added up on each rank, then reduced and applied. With Keras 3
            this is the optimizer's own ``gradient_accumulation_steps``, which it sets; with Keras 2 what has been added up is
            not saved.
        average_aggregated_gradients: divide them by `backward_passes_per_step`.
        process_set: the ranks that train together. On a rank outside of it nothing is reduced.
        scale_local_gradients: divide gradients that `register_local_var` keeps on this rank by the number of ranks.
        auto_scale_loss: see above; as in ``compile(auto_scale_loss=...)``.
        start_check: what happens where the ranks' variables, or their optimizers', differ after the first batch of ``fit``
            (or before the second update in your own loop; docs/sharp_edges.md): "error", a MismatchError;
            "warn", a line in the log; "broadcast", the same, and all ranks get the first rank's; "off": they are not compared.
            None: what the knob HVDLITE_START_CHECK says.
        shard: each variable is stepped by one rank of the set, which alone keeps its slots (Keras 3 only; docs/sharding.md).
            Weights have the same bits as without it. The model is saved on all ranks then, as the plain one.
        weighted: a rank's gradients count by the number that its loss divides by (Keras 3 only): that of its batch's elements
            without those that a mask leaves out, or with reduction="mean_with_sample_weight" the sum of the sample weights.
            So ``fit`` on batches that differ in size between the ranks equals one process with the whole batch. It needs a loss
            of ``keras.losses`` (or one that ``compile`` makes of a name or function) with a value for each sample. If a step
            has several losses, the last one counts. In loops of your own set ``optimizer.weight`` instead.

    Returns:
        The same optimizer with a method ``register_local_var(variable)`` and an attribute ``weight``, or the LossScaleOptimizer
        around it.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnsupportedError: Keras or its framework distributes the training by itself, or cannot be served.
        NotInitializedError: `init` has not been called.

    Later, applying gradients can raise MismatchError (the ranks' variables or settings differ) and HorovodInternalError (a rank
    failed), under TensorFlow ``tf.errors.FailedPreconditionError`` and its like.

    """
    del device_dense, device_sparse
    return wrap(
        arguments.scaled(optimizer) if auto_scale_loss else optimizer,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=arguments.chosen_groups(num_groups, groups),
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        start_check=start_check,
        shard=shard,
        weighted=weighted,
    )


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
    """`DistributedOptimizer` that keeps some layers' gradients on each rank, so that these layers differ between ranks.

    Args:
        optimizer: as for `DistributedOptimizer`, and so are the arguments that are not listed.
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
        local_layers: a layer, or a list of layers; they need not be built yet. Give their weights to
            `BroadcastGlobalVariablesCallback` as `local_variables` too.
        scale_local_gradients: divide these gradients by the number of ranks, as an average with zeros would.
        auto_scale_loss: as for `DistributedOptimizer`.
        start_check: as for `DistributedOptimizer`.

    Raises:
        InvalidArgumentError: `local_layers` holds something else than layers; or as for `DistributedOptimizer`.

    """
    layers = arguments.checked_layers(local_layers)
    wrapped = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        groups=groups,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        auto_scale_loss=auto_scale_loss,
        start_check=start_check,
    )
    wrapped._hvdlite.add_local(layers=layers)
    return wrapped


def wrap(
    optimizer: Any,
    *,
    name: str | None,
    compression: Any,
    sparse_as_dense: bool,
    gradient_predivide_factor: float,
    op: int,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    groups: int | Sequence[Iterable[Any]] | None,
    process_set: ProcessSet,
    scale_local_gradients: bool,
    start_check: str | None = None,
    shard: bool = False,
    weighted: bool = False,
) -> Any:
    """`DistributedOptimizer` without a look at the policy; arguments and errors are those."""
    arguments.check_optimizer(optimizer)
    RUNTIME.require_topology()
    check_process_set(process_set)
    check_compression(compression)
    check_shard(shard, optimizer)
    op = arguments.checked_op(op, gradient_predivide_factor)
    backend = current_backend()
    backend.check_supported()
    check_passes(backward_passes_per_step)
    arguments.check_weighted_by_loss(weighted, op)
    if weighted:
        follow_losses()
    factor = 1.0
    if KERAS_3 and backward_passes_per_step > 1:
        arguments.accumulate(optimizer, backward_passes_per_step)
        # Keras's own accumulation gives the mean of the passes.
        factor = 1.0 if average_aggregated_gradients else float(backward_passes_per_step)
    settings = Settings(
        name=name or "optimizer",
        serial=next(_serials[tuple(process_set.ranks or ())]),
        reduction=Reduction(
            op=op,
            prescale=1.0 / gradient_predivide_factor,
            postscale=float(gradient_predivide_factor),
            compression=compression,
            sparse_as_dense=bool(sparse_as_dense),
            process_set=process_set,
        ),
        groups=arguments.checked_groups(groups),
        factor=factor,
        scale_local=bool(scale_local_gradients),
        start_check=mode_of(start_check, "DistributedOptimizer"),
        shard=shard,
        weighted=weighted,
    )
    reducer = Reducer(settings, backend, optimizer)
    follow_batches()
    reducer.wrap_alike = functools.partial(
        wrap,
        name=name,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        start_check=start_check,
        shard=shard,
        weighted=weighted,
    )
    if not KERAS_3 and backward_passes_per_step > 1:
        from hvdlite.tensorflow.aggregation import LocalAggregation

        reducer.aggregation = LocalAggregation(
            backward_passes_per_step, average_aggregated_gradients, sparse_as_dense, reducer.reduce
        )
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
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Does this optimizer reduce its gradients?"""
    return isinstance(optimizer, _Distributed)


def _swap_class(optimizer: Any, mixins: Sequence[type[Any]], members: dict[str, Any]) -> None:
    """Puts classes in front of the optimizer's own; what it is in Keras's eyes stays."""
    kind: Any = type(optimizer)
    base = getattr(kind, "_hvdlite_base", kind)
    described = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_hvdlite_base": base,
        # Keras looks here for the class under which the optimizer is registered and saved.
        "__class__": property(lambda self: base),
    }
    _class_of_object.__set__(optimizer, type(base.__name__, (*mixins, base), {**described, **members}))


class _Distributed(_Optimizer):
    """What is added to an optimizer of any Keras. Its two attributes belong to the class that was made for the optimizer."""

    _hvdlite: Reducer
    _hvdlite_base: type[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Makes an optimizer that is wrapped like the one whose class this is, as ``from_config`` of that one does."""
        super().__init__(*args, **kwargs)
        self._hvdlite.wrap_alike(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles and copies as the plain optimizer."""
        reduced: Any = super().__reduce_ex__(protocol)
        function, args, *rest = reduced
        if getattr(function, "__self__", None) is type(self):  # a class method of Keras's, of our class
            function = getattr(self._hvdlite_base, function.__name__)
        return (function, tuple(self._hvdlite_base if arg is type(self) else arg for arg in args), *rest)

    def register_local_var(self, var: Any) -> None:
        """Keeps the gradient of a variable on this rank."""
        self._hvdlite.add_local([var])

    @property
    def weight(self) -> Any:
        """How much this rank's gradients count; None: as much as every other rank's.

        A number of 0 or more, or a scalar tensor of Keras's backend, such as the number of samples in this rank's batch. It is
        set before the gradients are applied, in a compiled training step within that step, and stays until it is set again. The
        gradients are then ``sum(weight * gradient) / sum(weight)`` over the ranks, which is what one process gets from the
        whole batch. All ranks have one, or none. A rank of weight 0 contributes nothing, whatever its gradients hold. The
        weights of passes that are added up before they are reduced add up (not on JAX). Needs op Average.
        """
        return self._hvdlite.weight

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":  # Keras and TensorFlow would track it
            self._hvdlite.weigh(value)
            return
        # The first thing that Keras's loss scalers do to the optimizer they are put around; its own __init__ may do so, too.
        scaled = name == "loss_scale_factor" and value is None and hasattr(self, name)
        if scaled or (name == "_is_wrapped_by_loss_scale_optimizer" and value):
            raise UnsupportedError(
                "a LossScaleOptimizer around hvdlite's DistributedOptimizer would look for an overflow on this rank alone, and "
                "the ranks would part. Put it inside: DistributedOptimizer(keras.mixed_precision.LossScaleOptimizer(opt)), or "
                "set the policy mixed_float16 before DistributedOptimizer is called, which then does so by itself. (It is "
                "compile() that adds one for a model of this policy, unless the optimizer is a LossScaleOptimizer)"
            )
        super().__setattr__(name, value)


class _Keras3(_Distributed):
    """Keras 3 applies all gradients through `apply`, but for the loss scaler on JAX."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces the gradients, unless they are to be accumulated first."""
        grads = list(grads)
        known = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if len(known) != len(grads):
            raise InvalidArgumentError(
                f"apply() got {len(grads)} gradients for {len(known)} variables; pass one for each, and the variables too "
                "unless the optimizer is built"
            )
        if self._accumulation_steps():
            self._hvdlite.add_weight_of_pass()
        else:
            grads = self._hvdlite.reduce(grads, known, self._hvdlite.weight_of_pass())
        return super().apply(grads, trainable_variables)

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """Reduces the gradients where this does not come to `apply`."""
        if arguments.scales_loss(self):
            grads = self._hvdlite.reduce(list(grads), self._trainable_variables, self._hvdlite.weight_of_pass())
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)

    def _accumulation_steps(self) -> int:
        """How many passes this optimizer adds up before it applies them; 0 if it does not."""
        return getattr(self, "gradient_accumulation_steps", None) or 0

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> Any:
        """Called with the gradients of one pass, which calls the next."""
        self._hvdlite.accumulated = trainable_variables
        return super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads: Any) -> Any:
        """Called with what was accumulated when a step is complete; on JAX in every pass."""
        reducer, steps = self._hvdlite, self._accumulation_steps()
        if steps and keras.backend.backend() == "jax":
            complete = (self._iterations + 1) % steps == 0
            grads = keras.ops.cond(complete, lambda: reducer.reduce(grads, reducer.accumulated), lambda: list(grads))
        elif steps:
            grads = reducer.reduce(grads, reducer.accumulated, reducer.take_added_weight())
        return super()._clip_gradients(grads)


class _Keras2(_Distributed):
    """Keras 2 applies all gradients through `apply_gradients`."""

    @property
    def _agg_helper(self) -> Any:
        """What adds up gradients, whose ``counter`` programs ask Horovod's optimizer for."""
        return self._hvdlite.aggregation

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        """Reduces the gradients, unless `_compute_gradients` has, or the caller says that this was done.

        ``iterations`` counts passes, also those after which nothing is applied, as with Horovod.
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

        # As operations without a value, since a step that is not complete has none.
        return aggregation.apply(
            reduced, lambda: tf.group(apply()), lambda: tf.group(self.iterations.assign_add(1, read_value=False))
        )

    def _compute_gradients(self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None) -> list[tuple[Any, Any]]:
        """The gradients as `apply_gradients` is to use them. Not public, but programs and Keras's older optimizers call it."""
        base: Any = super()
        if hasattr(base, "_compute_gradients"):
            pairs = base._compute_gradients(loss, var_list, grad_loss, tape)
        else:
            pairs = base.compute_gradients(loss, var_list, tape)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        computed = self._hvdlite.computed = self._reduced(gradients, variables)
        return list(zip(computed, variables, strict=True))

    def _reduced(self, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Reduced over the ranks, or added up until they are to be."""
        reducer, weight = self._hvdlite, self._hvdlite.weight_of_pass()
        add = reducer.reduce if reducer.aggregation is None else reducer.aggregation.add
        return list(add(gradients, variables, weight))
