"""`DistributedOptimizer`: makes an optimizer average the gradients of all ranks.

The optimizer stays the same object. hvdlite only replaces its class by a subclass with a few more methods, and installs hooks
on its parameters and around its step. So its state, its parameter groups, ``isinstance`` and schedulers that were created
before still work. An optimizer that is not sharded can be pickled as before. (This file has over 400 lines, because one
docstring describes all options of the optimizer.)
"""

import itertools
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from hvdlite import ops
from hvdlite.checks import check_passes, check_process_set
from hvdlite.compression import Compression, keeps_state, refuse_codec
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import OP_NAMES, Adasum, Average
from hvdlite.runtime import RUNTIME
from hvdlite.start_check import mode_of
from hvdlite.submission import check_weight
from hvdlite.torch.adasum import AdasumStep
from hvdlite.torch.agreement import ReducerSettings
from hvdlite.torch.arguments import checked_op, name_groups, name_parameters, require_initialized
from hvdlite.torch.coded_methods import CodedMethods, check_compression_and_groups, refuse_unknown_scale, share_after_joins
from hvdlite.torch.gpu import reachable
from hvdlite.torch.plan import Groups
from hvdlite.torch.reducer import Reducer
from hvdlite.torch.sharded_methods import ShardedMethods, connect
from hvdlite.torch.sharding import ShardedState, check_shard
from hvdlite.torch.steps import ParameterWatch, change_closure, is_inner_step, reach_steps
from hvdlite.usage import optimizer_stepped

if TYPE_CHECKING:
    _Optimizer = torch.optim.Optimizer
else:
    _Optimizer = object  # the class below is mixed into subclasses of torch.optim.Optimizer

__all__ = ["DistributedOptimizer"]

# For each set of ranks, the number of the next optimizer that is wrapped. A number means the same optimizer on all ranks of the
# set, because these ranks wrap their optimizers in the same order. Each set has a count of its own, because ranks outside of
# the set need not have these optimizers.
_serials: defaultdict[tuple[int, ...], Iterator[int]] = defaultdict(itertools.count)

_connected: "weakref.WeakSet[_Wrapping]" = weakref.WeakSet()  # the wrappings that reduce gradients or steps


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Iterable[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    *,
    average_aggregated_gradients: bool = False,
    gradient_as_bucket_view: bool | None = None,
    start_check: str | None = None,
    shard: bool = False,
) -> Any:
    """Makes an optimizer train on the gradients of all ranks.

    When ``loss.backward()`` returns, what backward has added to each ``.grad`` is averaged (or summed) over all ranks, with the
    same bits on all ranks. So clipping, loss scaling, accumulation and schedulers work as in torch's own documentation. In
    particular:

    - Several backward passes before a step add up: the gradients of each pass are averaged over the ranks, and then added to
      ``.grad``. Values that you write into ``.grad`` after a reduction are not reduced. Inside `no_sync`, and before the last
      of `backward_passes_per_step` passes, ``.grad`` has only this rank's gradients.
    - If a parameter is unused on some ranks, these ranks contribute zeros; if it is unused on all, ``.grad`` stays as it is.
    - If no backward has run before ``step()``, ``step()`` reduces gradients that you computed in another way.
    - Gradients have the dtype that torch gives them (``grad_dtype``), and are reduced in that dtype.
    - If the ranks' batches differ in size, set ``optimizer.weight = len(batch)`` before ``backward()`` on all ranks. The
      weighted mean equals the mean of one process with the whole batch.
    - With a closure (LBFGS) the optimizer sees the training loss reduced over all ranks, like the gradients.
    - With op=Adasum ``backward()`` reduces nothing: ``step()`` uses this rank's gradients (and the loss that a closure returns
      on this rank), and then combines the changes of the parameters on all ranks.
    - The plain optimizer can load a ``state_dict()`` of the wrapped one, and the other way round.

    Reductions of gradients are collective over `process_set`: the ranks must have the same parameters, by name, shape and
    dtype, in the same order, and freeze the same ones (the first reduction checks all this). The ranks must run the same number
    of backward passes and steps (a rank that has no more data calls `join`), and wrap their optimizers in the same order.

    Args:
        optimizer: any optimizer of torch. It is changed in place. A second call replaces the first wrapping, and is
            collective if the first call had ``shard=True``.
        named_parameters: the model's named parameters: errors and logs use the names, and buckets follow the order of the
            parameters. Parameters that the optimizer does not have are allowed, and ignored. Default: names made of the places
            in the optimizer's parameter groups.
        compression: `Compression.none`, `fp16`, `bf16`, or a class with the same methods; or a codec such as
            ``Compression.int8()``, for slow links between hosts (it needs dense gradients, or `sparse_as_dense`); or
            `Compression.auto`, which chooses a compression by a measurement when the gradients are first reduced.
            `Compression.powersgd`, error feedback and a `BucketCodec` keep state in the optimizer, and ``state_dict()``
            includes this state. If you use one of these three with a ``GradScaler``, set ``optimizer.loss_scale = scaler``.
        backward_passes_per_step: each rank adds up this many passes before the gradients are reduced. The gradients are
            not divided by this number: divide the loss, or pass `average_aggregated_gradients`.
        op: `Average` or `Sum` of the gradients, or `Adasum` of the optimizer's steps. For Adasum the number of ranks must be a
            power of two, and if one rank skips a step, all ranks must skip it. `backward_passes_per_step`, `groups`,
            `sparse_as_dense` and `gradient_as_bucket_view` have no effect with Adasum.
        gradient_predivide_factor: with Average only, divides the gradients before the sum and multiplies the result.
        num_groups: Horovod's older name of an integer `groups`; deprecated.
        groups: lists of parameters to be reduced together, or the number of groups to cut all parameters into. Within a group,
            parameters of different dtypes or devices are reduced separately. Parameters in no list (by default all) are put
            into buckets by size (the knobs bucket_bytes and first_bucket_bytes). The buckets, and so the bits of the results,
            do not depend on timing.
        sparse_as_dense: reduce sparse gradients as dense ones (and make them sparse again) instead of gathering the rows.
        process_set: the ranks that train together. On a rank that is not a member, the optimizer reduces nothing and trains as
            the plain one.
        average_aggregated_gradients: divide the sums by `backward_passes_per_step`, even after fewer passes.
        gradient_as_bucket_view: may gradients of at least 64 KiB lie in memory that all ranks of the host map? In this memory
            they are reduced without a copy. After autograd has made a gradient, hvdlite moves it there, and it stays there
            until the program sets ``.grad`` to None. Tensors that you assign to ``.grad`` are reduced where they are. True:
            they may, with a warning if it is impossible (several hosts, no shared memory). False: they may not. If the argument
            is None, they may if all ranks called ``optimizer.zero_grad(set_to_none=False)`` before the first reduction.
        start_check: what happens if the ranks' parameters, or their optimizers' states, differ after the first update (with
            Adasum or `shard`: before it), because they were not broadcast. "error": a MismatchError; "warn": a line in the log;
            "broadcast": a line in the log, and all ranks get the values of the first rank; "off": they are not compared. None:
            the knob HVDLITE_START_CHECK decides.
        shard: does each of n ranks keep one n-th of the optimizer's state? Gradients and parameters stay whole, and the
            parameters get the same bits as without sharding (docs/sharding.md names one exception). With torch's optimizers
            whose step is elementwise (SGD, the Adam family, RMSprop, Adagrad and so on) a rank updates slices of parameters;
            with all other optimizers, such as Muon and Adafactor, it updates whole parameters. Do not shard an optimizer whose
            step combines several parameters, for example in a norm over all of them. With ``shard=True``, ``step()`` and
            ``state_dict()`` are collective. ``state_dict()`` returns the whole state on every rank. ``load_state_dict()`` takes
            a whole state; the job that saved it may have had another size.

    Returns:
        The same optimizer, with the attribute ``weight`` and these methods: ``synchronize()``, ``skip_synchronize()``,
        ``no_sync()`` and ``set_backward_passes_per_step(passes)``. The engine reads and writes gradients in the memory
        of NVIDIA GPUs, without a copy to the host. It applies `Compression.fp16` and `bf16` to them while it packs them, which
        needs no further copy. Gradients on other devices travel through host memory.

    Raises:
        InvalidArgumentError: an argument is wrong.
        UnsupportedError: op is Adasum, and the number of ranks is not a power of two; this optimizer cannot be sharded; or this
            compression does not work with Adasum, or with several ranks on a host.
        HorovodInternalError: (in a second call) a rank failed.
        NotInitializedError: `init` has not been called.

    Later, ``backward()``, ``step()`` and ``synchronize()`` can raise MismatchError (the ranks' parameters differ),
    HorovodInternalError (a rank failed), NotInitializedError (hvdlite was shut down), AssertionError (more passes than
    `backward_passes_per_step`, if that is > 1), and InvalidArgumentError or UnsupportedError (the parameter or gradient that
    the text names cannot be reduced in this way).

    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(f"DistributedOptimizer wraps a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    RUNTIME.require_topology()
    check_process_set(process_set)
    op = checked_op(op, gradient_predivide_factor, average_aggregated_gradients, process_set)
    check_passes(backward_passes_per_step)
    if op == Adasum:
        refuse_codec(compression, "a reduction with op=Adasum")
    groups = (num_groups or None) if groups is None else groups
    check_compression_and_groups(compression, groups)
    if not (gradient_as_bucket_view is None or isinstance(gradient_as_bucket_view, bool)):
        raise InvalidArgumentError(f"gradient_as_bucket_view must be True, False or None, got {gradient_as_bucket_view!r}")
    check_shard(shard, op, type(optimizer))
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2)
    named = name_parameters(optimizer, named_parameters)
    named_groups = name_groups(groups, named)
    mode = mode_of(start_check, "DistributedOptimizer")
    if isinstance(optimizer, _DistributedOptimizer):
        optimizer._hvdlite.undo(optimizer)
    # The optimizer takes its number after everything that may raise on some ranks only: a call that raises must take no number.
    settings = ReducerSettings(
        prefix=f"optimizer{next(_serials[tuple(process_set.ranks or ())])}",
        op=op,
        gradient_predivide_factor=float(gradient_predivide_factor),
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=bool(average_aggregated_gradients),
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        gradient_as_bucket_view=gradient_as_bucket_view,
        start_check=mode,
        shard=shard,
    )
    wrapping = _Wrapping(settings, type(optimizer), {param: name for name, param in named})
    base = type(optimizer)
    members = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    shards = shard and process_set.included()
    coded = (CodedMethods,) if keeps_state(compression) and process_set.included() else ()
    bases = (*coded, *((ShardedMethods,) if shards else ()), _DistributedOptimizer)
    optimizer.__class__ = type(base.__name__, (*bases, base), members)
    optimizer._hvdlite = wrapping  # type: ignore[attr-defined]
    try:
        if process_set.included():
            wrapping.hook_steps(optimizer)
            if (process_set.size() or 1) > 1 or settings.average_aggregated_gradients:
                wrapping.connect(optimizer, named, named_groups)
        if shards:
            wrapping.shard(optimizer, named)
    except BaseException:  # Ctrl-C too: the program may go on, and must not have a wrapped optimizer that reduces nothing
        wrapping.undo(optimizer)
        raise
    return optimizer


_STEP_AFTER_SYNCHRONIZE = (
    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). Horovod would reduce "
    "the gradients twice, hvdlite does not; write `with optimizer.skip_synchronize():` around step(), or remove synchronize()"
)


def _stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not is_inner_step(optimizer):
        optimizer_stepped()


class _Wrapping:
    """The state that the wrapping adds to an optimizer."""

    def __init__(self, settings: ReducerSettings, base: type[torch.optim.Optimizer], names: dict[torch.Tensor, str]) -> None:
        self.settings = settings
        self.base = base
        self.names = names
        # None where gradients stay as they are: with Adasum, on a rank outside of the process set, and on a single rank without
        # average_aggregated_gradients.
        self.reducer: Reducer | None = None
        self.adasum: AdasumStep | None = None
        self.sharded: ShardedState | None = None  # None without shard=True, and on a rank outside of the process set
        self.passes_per_step = settings.backward_passes_per_step
        self.weight: float | None = None
        self.skipping = False  # does the program run inside of skip_synchronize()?
        self.synchronized = False  # has the program called synchronize() since the last step?
        self._undo: list[Callable[[], None]] = []
        self._finalizer: Any = None
        self._added = 0  # the number of calls of `add_parameters`

    def connect(self, optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, torch.Tensor]], groups: Groups) -> None:
        """Installs hooks on the parameters and around the step.

        Raises:
            InvalidArgumentError: as for `require_compatible`.
        """
        prefix = self.settings.prefix
        self.require_compatible(named)
        _connected.add(self)
        watch = ParameterWatch(self.names, prefix)
        self._undo.append(optimizer.register_step_pre_hook(watch.check).remove)
        if self.settings.op == Adasum:
            self.adasum = AdasumStep(self.settings, optimizer)
            self.adasum.add((f"{prefix}.{name}", param) for name, param in named)
            self._undo += [
                optimizer.register_step_pre_hook(self.adasum.before_step).remove,
                optimizer.register_step_post_hook(self.adasum.after_step).remove,
            ]
            return
        reducer = Reducer(self.settings, optimizer)
        self._finalizer = weakref.finalize(optimizer, reducer.close)
        self._finalizer.atexit = False
        self.reducer = reducer
        self._undo.append(optimizer.register_step_post_hook(self.reducer.note_step).remove)
        if isinstance(groups, tuple):
            groups = tuple(tuple(f"{prefix}.{name}" for name in names) for names in groups)
        self.reducer.add([(f"{prefix}.{name}", param) for name, param in named], groups)
        self._undo.append(optimizer.register_step_pre_hook(self.before_step).remove)
        if isinstance(optimizer, CodedMethods):
            self._undo.append(optimizer.register_step_pre_hook(refuse_unknown_scale).remove)
            share_after_joins(optimizer)

    def require_compatible(self, named: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Checks that no other wrapped optimizer would reduce the gradients (with Adasum: the steps) of these parameters
        differently.

        Raises:
            InvalidArgumentError: another optimizer has one of the parameters, and another op or process set.
        """
        mine = OP_NAMES[self.settings.op], self.settings.process_set.process_set_id
        for other in _connected:
            theirs = OP_NAMES[other.settings.op], other.settings.process_set.process_set_id
            if other is self or mine == theirs or not other.settings.process_set.included():
                continue
            for name, param in named:
                if param in other.names:
                    full = f"{self.settings.prefix}.{name}"
                    raise InvalidArgumentError(
                        f"parameter {full!r} belongs to two distributed optimizers that would reduce its gradient differently: "
                        f"op {theirs[0]} in process set {theirs[1]}, and op {mine[0]} in process set {mine[1]}; give both the "
                        "same op and process set, or delete the first optimizer before you make the second"
                    )

    def shard(self, optimizer: torch.optim.Optimizer, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Makes this rank update only its part of the parameters. The hooks of the method `connect` must exist before."""
        sharded = ShardedState(self.settings, self.base)
        sharded.add(named)
        self.sharded = sharded
        self._undo += connect(optimizer, sharded)

    def hook_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes torch call the hooks around each step, and installs a hook that counts the steps for `hvdlite.stats`."""
        self._undo.append(reach_steps(optimizer))
        self._undo.append(optimizer.register_step_post_hook(_stepped).remove)

    def undo(self, optimizer: torch.optim.Optimizer) -> None:
        """Removes the wrapping. Collective if the optimizer is sharded: each rank gets the whole state."""
        self.settle()
        if self.sharded is not None:
            optimizer.state = self.sharded.gather_state(optimizer)
        # The lines below must not raise. Otherwise the optimizer could look wrapped after it has lost its reducer.
        _connected.discard(self)
        if self.reducer is not None:
            self._finalizer.detach()
            self.reducer.close()
        for undo in reversed(self._undo):
            undo()
        optimizer.__class__ = self.base
        del optimizer._hvdlite  # type: ignore[attr-defined]

    def add_parameters(self, params: Iterable[torch.Tensor]) -> None:
        """Adds parameters to those whose gradients are reduced. If it raises (see `add_param_group`), nothing has changed."""
        prefix = f"{self.settings.prefix}."
        named = [(f"{prefix}added{self._added}.{place}", param) for place, param in enumerate(params)]
        short = [(name.removeprefix(prefix), param) for name, param in named]
        require_initialized(short)
        self.require_compatible(short)
        if self.sharded is not None:
            self.sharded.require_dense(short)
        self.settle()
        if self.reducer is not None:
            self.reducer.add(named)
        self._added += 1
        self.names.update((param, name) for name, param in short)
        if self.adasum is not None:
            self.adasum.add(named)
        if self.sharded is not None:
            self.sharded.add(short)

    def reducers(self) -> list[Reducer]:
        """All reducers of the optimizer's gradients; an empty list if the gradients stay as they are."""
        return [] if self.reducer is None else self.reducer.family()

    def settle(self) -> None:
        """Finishes the reductions of the last pass if they are not finished, for example because backward raised."""
        for reducer in self.reducers():
            reducer.settle()

    def complete(self) -> None:
        """Makes sure that all gradients are reduced (`Reducer.complete`)."""
        for reducer in self.reducers():
            reducer.complete()

    def next_step(self) -> None:
        """Counts passes and reductions from 0 again."""
        for reducer in self.reducers():
            reducer.start_step()

    def give_notice(self, notice: bool) -> None:
        """Sets whether this rank gives notice: a sign that travels with its weights, for example before it leaves."""
        for reducer in self.reducers():
            reducer.notice = notice

    def before_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Called before every step, also in a step that a scheduler has wrapped before. Reduces unreduced gradients.

        Returns:
            The step's arguments, with a closure of hvdlite in place of the program's; None if the arguments have no closure.

        """
        if is_inner_step(optimizer):
            return None
        changed = change_closure(args, kwargs, self._wrap_closure)
        if changed is not None:
            return changed
        if self.skipping:
            self.settle()
        else:
            if self.synchronized and RUNTIME.config.horovod_rules:
                warnings.warn(_STEP_AFTER_SYNCHRONIZE, stacklevel=3)
            self.complete()
        self.synchronized = False
        self.next_step()
        return None

    def _wrap_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Makes a closure that also reduces the gradients and the training loss, because an optimizer may use the loss."""

        def of_all_ranks() -> Any:
            self.settle()
            self.next_step()
            loss = closure()
            self.complete()
            self.next_step()
            return self._reduced(loss)

        return of_all_ranks

    def _reduced(self, loss: Any) -> Any:
        """The closure's loss, reduced over all ranks, if it is a tensor or a number. Other objects are returned as they are."""
        settings = self.settings
        arguments: dict[str, Any] = {"op": settings.op, "process_set": settings.process_set, "weight": self.weight}
        arguments["name"] = f"{settings.prefix}.loss"
        if isinstance(loss, torch.Tensor):
            return ops.allreduce(reachable(loss.detach()), **arguments).to(loss)
        if isinstance(loss, Real):
            return float(ops.allreduce(float(loss), **arguments))
        return loss


class _DistributedOptimizer(_Optimizer):
    """The methods that the wrapping adds to an optimizer."""

    _hvdlite: _Wrapping

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # A class may derive from this class and not from torch.optim.Optimizer, as in Lightning 1.9. But no object of such a
        # class can be made.
        if not issubclass(cls, torch.optim.Optimizer):
            raise UnsupportedError(
                f"{cls.__qualname__} derives from Horovod's _DistributedOptimizer, which hvdlite has for isinstance() only: "
                "pass an optimizer to DistributedOptimizer, and derive from that optimizer's class"
            )
        return super().__new__(cls)

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The names of the parameters; some programs read this attribute of Horovod's optimizer."""
        return self._hvdlite.names

    @property
    def weight(self) -> float | None:
        """The weight of this rank's gradients in the mean over the ranks; None, the default: all ranks have the same weight.

        If the loss is a mean over samples, set this weight before ``backward()``, on all ranks, to the number of samples in the
        rank's batch. The reduced gradients are ``sum(weight * gradient) / sum(weight)`` over the ranks, which equal the
        gradients of one process with the whole batch. The weight stays until you set it again. A rank with weight 0 contributes
        nothing, even if its gradients have NaNs. The weights of passes before one reduction (`no_sync`,
        `backward_passes_per_step`) add up: set a weight before each pass.

        Raises:
            InvalidArgumentError: the value is neither None nor a finite number of at least 0; or op is not Average.

        ``backward()`` raises MismatchError if only some ranks have a weight. It raises UnsupportedError if there is a weight, a
        gradient is sparse, and `sparse_as_dense` is False.
        """
        return self._hvdlite.weight

    @weight.setter
    def weight(self, weight: float | None) -> None:
        wrapping = self._hvdlite
        wrapping.weight = None if weight is None else check_weight(weight, wrapping.settings.op)
        for reducer in wrapping.reducers():
            reducer.weigh(wrapping.weight)

    @property
    def backward_passes_per_step(self) -> int:
        """The number of backward passes that each rank adds up before a reduction."""
        return self._hvdlite.passes_per_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes `backward_passes_per_step`. Call it between steps, on all ranks. Passes before the call do not count.

        Raises:
            InvalidArgumentError: passes is not a whole number above 0.

        """
        check_passes(passes)
        self._hvdlite.settle()
        if self._hvdlite.reducer is not None:
            self._hvdlite.reducer.set_passes_per_step(passes)
        self._hvdlite.next_step()
        self._hvdlite.passes_per_step = passes

    def synchronize(self) -> None:
        """Reduces all unreduced gradients. Does nothing with op=Adasum.

        ``backward()`` reduces gradients, and ``step()`` those that are still unreduced. So call this method only to see reduced
        gradients before ``step()`` in these cases: after `no_sync`, after fewer than `backward_passes_per_step` passes, and if
        no ``backward()`` has computed the gradients.

        Raises:
            HvdliteError: any error of ``backward()``; see `DistributedOptimizer`.

        """
        self._hvdlite.complete()
        self._hvdlite.synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A with statement in which ``step()`` reduces nothing, for scripts that call `synchronize` themselves. Outside of this
        statement ``step()`` reduces only gradients that are still unreduced. A step with a closure reduces in any case.

        Raises:
            AssertionError: op is Adasum, and there are several ranks.

        """
        wrapping = self._hvdlite
        if wrapping.adasum is not None:
            raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        before, wrapping.skipping = wrapping.skipping, True
        try:
            yield
        finally:
            wrapping.skipping = before

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A with statement in which backward passes add to this rank's gradients without a reduction. The next backward pass
        outside of the statement, or ``step()``, reduces the sum. All ranks must use `no_sync` for the same passes.
        """
        reducers = self._hvdlite.reducers()
        for reducer in reducers:
            reducer.suspended += 1
        try:
            yield
        finally:
            for reducer in reducers:
                reducer.suspended -= 1

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Resets the gradients, as the optimizer's own ``zero_grad`` does (``set_to_none`` included)."""
        keeps = not (args[0] if args else kwargs.get("set_to_none", True))
        self._hvdlite.settle()
        super().zero_grad(*args, **kwargs)
        if self._hvdlite.reducer is not None:
            self._hvdlite.reducer.after_reset(keeps)
            self._hvdlite.next_step()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters; their gradients are reduced, too. Call it on all ranks with the same parameters.

        Raises:
            InvalidArgumentError: another distributed optimizer has one of the parameters, with another op or process set;
                a parameter belongs to a lazy layer that has seen no batch; or this optimizer is sharded, and a parameter has
                gaps in memory.
            HvdliteError: `Compression.auto` could not measure the link, or the compression does not fit a new parameter.

        After an error the group is not added.

        """
        super().add_param_group(param_group)
        try:
            self._hvdlite.add_parameters(self.param_groups[-1]["params"])
        except BaseException:  # the program may go on, also after Ctrl-C: this rank must not train the parameter group alone
            del self.param_groups[-1]
            raise

    def __reduce_ex__(self, _protocol: Any) -> Any:
        """Makes pickle and copy give a plain optimizer, without the wrapping."""
        plain: Any = object.__new__(self._hvdlite.base)
        vars(plain).update((key, value) for key, value in vars(self).items() if key != "_hvdlite")
        return plain.__reduce_ex__(1)  # with a later protocol pickle refuses a result of another class
