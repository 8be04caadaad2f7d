"""Reduces the gradients of one optimizer's parameters while backward() runs. When backward() returns, all are reduced.

Native code, `PassDriver`, handles a pass (one backward with the backwards nested in it):

1. Before backward adds to a gradient that is reduced already, the reduced gradient is kept apart (see `ParameterGradient`).
2. After backward has added to a gradient, the gradient is counted in its bucket. If there is a plan already and no backward was
   ever nested, a bucket is launched as soon as all its gradients are counted.
3. When the pass is over, the other buckets are launched (this rank is absent for gradients that it does not have), and the
   thread waits for all results. If backward raised, or if the end of a task (autograd's run of one backward) was not reported,
   a later call of `settle` does what is left of point 3, at the latest before the optimizer's step.

Inside of `no_sync`, and in all but the last of `backward_passes_per_step` passes, points 2 and 3 are left out.

This file has the steps that `PassDriver` calls: the steps for the plan, the engine and the buckets, and all that need torch.
(Over 400 lines, because the steps share the state of one class.)
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from hvdlite import submission
from hvdlite._engine import PassDriver
from hvdlite.compression import keeps_state
from hvdlite.errors import HvdliteError, InvalidArgumentError, UnsupportedError
from hvdlite.requests import Kind
from hvdlite.runtime import RUNTIME
from hvdlite.torch.agreement import ReducerSettings, agree
from hvdlite.torch.arena import make_places
from hvdlite.torch.hooks import AtEnd, fetch_ahead, install
from hvdlite.torch.in_flight import Bucket, DenseBucket, InFlightBucket, has_moved
from hvdlite.torch.parameter_gradient import ParameterGradient, declared_dtype
from hvdlite.torch.passes import TOO_MANY_PASSES, EndOfTask, current_task, is_nested, when_task_ends
from hvdlite.torch.plan import Groups, make_buckets
from hvdlite.torch.start_check import leaves_of_gradients, make_check

if TYPE_CHECKING:
    from hvdlite._engine import Arena, Engine
    from hvdlite.handles import Handle

_owners: dict[int, "weakref.ref[Reducer]"] = {}  # by the id of the parameter; the reducer keeps the parameter alive


def owner_of(param: torch.Tensor) -> "Reducer | None":
    """The reducer that now reduces a parameter's gradient, or None."""
    reference = _owners.get(id(param))
    owner = None if reference is None else reference()
    return owner if owner is not None and owner.holds(param) else None


class Reducer(PassDriver):
    """The gradients of one wrapped optimizer. It keeps no reference to the optimizer."""

    buckets: list[Bucket]

    def __init__(self, settings: ReducerSettings, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(current_task, is_nested)
        self.settings = settings
        self.passes_per_step = settings.backward_passes_per_step
        self.weight: float | None = None  # the weight of this rank's gradients; None: all ranks have the same weight
        self.notice = False  # does this rank give notice with its weight?
        self.loss_scale: Any = None  # the factor of the loss: a GradScaler, a number, or None for 1
        self._weighed = False  # was the weight set since the last reduction?
        self._weight_before = 0.0  # the sum of the weights of earlier passes that are reduced together with the present one
        self._has_passed = False  # has a pass begun since the weight was set?
        self._gradients: dict[int, ParameterGradient] = {}  # by the id of the parameter, as are the hooks
        self.check = make_check(optimizer, settings, self._gradients.values())
        # The start check compares parameters when `updated` is true, usually after the optimizer's first step. With a sharded
        # state a comparison after that step would find no difference: in a sharded step each rank sends its part of the
        # parameters, and then all ranks have equal parameters. So with a sharded state `updated` is true before the first step.
        self.check.updated = settings.shard
        self._hooks: dict[int, list[Any]] = {}
        self._partners: list[Reducer] = []  # reducers that have taken over parameters which this optimizer steps as well
        self._handed_over: list[torch.Tensor] = []  # the parameters that partners have taken over
        self._borrowers: weakref.WeakSet[Reducer] = weakref.WeakSet()  # reducers that have this one among their partners
        self._is_left = False  # is this reducer's own optimizer, or its wrapping, gone?
        # The plan, made at the first reduction.
        self._left_out: list[ParameterGradient] = []  # in no bucket: frozen, and of a dtype that cannot be reduced
        self._groups: Groups = None
        self._generation = 0
        self._arena: Arena | None = None  # the arena with the gradients' places
        self._keeps = False  # were gradients zeroed at their last reset, and not set to None?
        self._holding: list[ParameterGradient] = []  # the gradients with a reduced part in the current task
        self._engine: Engine | None = None
        self.in_flight: deque[InFlightBucket] = deque()  # the launched buckets
        self._compared: Handle | None = None  # the sum of the start check, while it is in flight

    # --- parameters -------------------------------------------------------------------------------------------------------

    def add(self, named: Iterable[tuple[str, torch.Tensor]], groups: Groups = None) -> None:
        """Takes charge of parameters, even if another reducer has charge of them. The next reduction makes a new plan.

        Args:
            named: unique names, and the parameters in the order of the model.
            groups: the parameters to reduce together, by name, or a number of groups; None: as in the previous call of `add`,
                or by size if there was no call with groups.

        Raises:
            HvdliteError: another reducer had to reduce its gradients before it could give up a parameter, and this reduction
                failed. In this case nothing has changed.

        """
        added = [(name, param, owner_of(param)) for name, param in named]
        for former in dict.fromkeys(owner for _, _, owner in added if owner is not None):
            former.settle()  # all owners settle before any gives up a parameter, because settle() may raise
        for name, param, owner in added:
            if owner is not None:
                owner._give_up(param, self)
            key, gradient, reference = id(param), ParameterGradient(name, param), weakref.ref(self)
            hooks = install(param, self, gradient)
            self._gradients[key], self._hooks[key], _owners[key] = gradient, hooks, reference
        self._use_lock()
        self._groups = self._groups if groups is None else groups
        self._drop_plan()

    def _use_lock(self) -> None:
        """Makes the lock if parameters are on several devices: autograd has a thread for each device, which calls the hooks."""
        if self.lock is None and len({gradient.param.device for gradient in self._gradients.values()}) > 1:
            self.lock = threading.RLock()

    def holds(self, param: torch.Tensor) -> bool:
        """Does this reducer handle the parameter?"""
        return id(param) in self._gradients

    def _give_up(self, param: torch.Tensor, successor: "Reducer") -> None:
        """Gives a parameter to the successor. Call `settle` before.

        After the call the successor reduces the parameter's gradient for two optimizers: its own, and this reducer's optimizer.
        """
        self._drop_plan()
        self._handed_over.append(self._gradients.pop(id(param)).param)
        for hook in self._hooks.pop(id(param)):
            hook.remove()
        if successor is not self and successor not in self._partners:
            self._partners.append(successor)
            successor._borrowers.add(self)

    def family(self) -> list["Reducer"]:
        """This reducer, and all others that reduce for its optimizer."""
        found = [self]
        for member in found:
            found += [partner for partner in member._partners if partner not in found]
        return found

    def close(self) -> None:
        """Called when the optimizer or its wrapping is gone. Removes the hooks as soon as no other optimizer uses them."""
        self._is_left = True
        if len(self._borrowers):
            return
        for partner in self._partners:
            partner._borrowers.discard(self)
            if partner._is_left:
                partner.close()
        for key, hooks in self._hooks.items():
            for hook in hooks:
                hook.remove()
            _owners.pop(key, None)
        self._hooks.clear()
        self._gradients.clear()
        self._leave_in_flight()
        self._drop_plan()

    # --- for a pass -------------------------------------------------------------------------------------------------------

    def _hold_reduced(self, gradient: ParameterGradient, grad: torch.Tensor) -> None:
        """Keeps a finished gradient apart, because backward is about to add to it."""
        if not self._holding:
            when_task_ends(AtEnd(self.restore))
        self._holding.append(gradient)  # first, so that after Ctrl-C every reduced part is known here and can be put back
        gradient.hold_reduced(grad)

    def _refuse_pass(self, gradient: ParameterGradient) -> None:
        """Raises an error, because backward has added to this gradient more often than is allowed before a step."""
        with torch.no_grad():
            gradient.merge()
        raise AssertionError(TOO_MANY_PASSES)

    def _watch(self, number: int, nested: bool) -> None:
        """Makes autograd's current task report its end to the pass with this number."""
        EndOfTask(self, number, nested).register()

    def _use_engine(self) -> None:
        """Takes the present engine. Drops the plan if it was made for another engine, or no longer fits the model.

        Raises:
            NotInitializedError: hvdlite was shut down.
            InvalidArgumentError: the process set was removed.
        """
        if self._engine is None or RUNTIME.engine is not self._engine:
            engine = RUNTIME.require()  # the first one, or hvdlite was shut down and initialised again
            self._drop_plan()
            self._leave_in_flight()
            self._generation = 0  # the ranks of the new job may have made different numbers of plans before
            self._engine = engine
        elif any(has_moved(bucket) for bucket in self.buckets) or any(
            gradient.param.requires_grad for gradient in self._left_out
        ):
            self._drop_plan()  # all ranks have moved the model to another device or dtype, or unfrozen what was left out
        self.settings.process_set.require_member(Kind.ALLREDUCE)
        self._has_passed = True

    def _has_lost_engine(self) -> bool:
        """Was hvdlite initialised again since the pass began, or the process set removed? If so, drops the launched buckets."""
        if None in (self._engine, RUNTIME.engine):
            return False
        if RUNTIME.engine is self._engine and self.settings.process_set.included():
            return False
        self._leave_in_flight()
        return True

    def _drop_plan(self) -> None:
        for bucket in self.buckets:
            if self._engine is not None:
                bucket.close(self._engine)
            for gradient in bucket.gradients:
                gradient.place = None
        self.drop_plan()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _plan(self) -> None:
        """Collective over the process set: checks that all ranks have the same parameters, and cuts them into buckets."""
        gradients = list(self._gradients.values())
        self._use_lock()  # moved parameters may now be on several devices
        self._generation += 1
        agreed = agree(
            self.settings, gradients, repr(self._groups), self._generation, self._keeps, unchecked=self.check.pending
        )
        if agreed.unchecked:
            self.check.begin_anew()
        for place, dimensions in agreed.sparse.items():
            gradients[place].sparse_dim = dimensions
        for place, gradient in enumerate(gradients):
            gradient.dtype = declared_dtype(gradient.param) or agreed.dtypes.get(place, gradient.param.dtype)
        self.set_plan(make_buckets(self.settings, gradients, self._groups, self._generation))
        wanted = self.settings.gradient_as_bucket_view
        if wanted or (wanted is None and agreed.kept):
            self._make_places()
        expected = [gradient for bucket in self.buckets for gradient in bucket.gradients]
        planned = set(expected)
        self._left_out = [gradient for gradient in gradients if gradient not in planned]
        fetch_ahead([((gradient, gradient.param), self._hooks[id(gradient.param)]) for gradient in expected])

    def _make_places(self) -> None:
        """Collective over the process set: gives the gradients places in an arena, if one can be made."""
        dense = [bucket for bucket in self.buckets if isinstance(bucket, DenseBucket)]
        members = [member for bucket in dense for member in bucket.members]
        name = f"{self.settings.prefix}.plan{self._generation}.arena"
        self._arena, reason = make_places(name, members, self.settings.process_set)
        for gradient in self._gradients.values():
            if gradient.dirty:
                gradient.move_in()
        if self._arena is None and self.settings.process_set.rank() == 0:
            level = logging.WARNING if self.settings.gradient_as_bucket_view else logging.INFO
            logging.getLogger("hvdlite").log(level, f"gradients of {self.settings.prefix} are not in an arena: {reason}")

    # --- launched buckets -------------------------------------------------------------------------------------------------

    def _launch(self, number: int, wake: bool) -> None:
        assert self._engine is not None  # since the pass began
        bucket = self.buckets[number]
        if self.check.pending and self.check.watching and self._compared is None:
            self.check.see(leaves_of_gradients(gradient.param for gradient in bucket.gradients if gradient.dirty))
        self._weighed = False
        bucket.launch(self._engine, self, number, wake)

    def _begin_check(self) -> None:
        # If Ctrl-C prevented an earlier submission of the check's sum, the handle in `_compared` has no number. In this case
        # the sum is submitted now.
        if self.check.pending and (self._compared is None or not self._compared.number):
            submission.start_sum(self.check.begin(), self.check.name, self.settings.process_set, self._keep_compared)

    def _keep_compared(self, handle: "Handle") -> None:
        self._compared = handle

    def _wait(self, strict: bool) -> None:
        """Waits for all launched buckets, and stores their results. When all buckets have ended, raises the first HvdliteError.

        But if a user's compression raises an exception, this method raises the exception at once. The next call of the method
        stores the other results.
        """
        engine = self._engine
        if engine is None or engine is not RUNTIME.engine:
            self._leave_in_flight()
            self.forget_additions()
            RUNTIME.require()
            return
        failure: HvdliteError | None = None
        if len(self.in_flight) > 1 and keeps_state(self.settings.compression):  # the loop below starts later rounds
            place_of = {id(bucket): place for place, bucket in enumerate(self.buckets)}  # the same order on all ranks
            self.in_flight = deque(sorted(self.in_flight, key=lambda launched: place_of[id(launched.bucket)]))
        with torch.no_grad():
            while self.in_flight:
                launched = self.in_flight[0]
                launched.bucket.wait(engine, launched)  # Ctrl-C leaves the bucket in flight, and the pass unsettled
                error = launched.store(strict)
                failure = failure or error
                self.in_flight.popleft()
            try:
                self._end_check()
            except HvdliteError as error:
                failure = failure or error
        self.settled()
        if failure is not None:
            raise failure

    def _end_check(self) -> None:
        if self._compared is not None:
            rows = self._compared.synchronize()
            self._compared = None
            self.check.end(rows)

    def _leave_in_flight(self) -> None:
        """Stops waiting for launched buckets. The engine itself keeps the memory that it may still use."""
        self.in_flight.clear()
        self._compared = None

    def restore(self) -> None:
        """Puts each reduced part back into ``.grad`` if backward has added nothing to its gradient."""
        for gradient in self._holding:
            if gradient.param.grad is None:
                gradient.merge()
        self._holding.clear()

    def _merge_rest(self) -> None:
        """Adds up the reduced part and the increment of each gradient for which Ctrl-C has prevented this."""
        with torch.no_grad():
            for gradient in self._gradients.values():
                if gradient.reduced_part is not None and not gradient.dirty:
                    gradient.merge()

    def _require_hooks(self) -> None:
        """Refuses parameters that ``torch.utils.swap_tensors`` has swapped with other tensors.

        Raises:
            InvalidArgumentError: a parameter was swapped. It has lost its hooks, so its gradient would not be reduced.
        """
        gradients = self._gradients.values()
        swapped = [repr(gradient.name) for gradient in gradients if gradient.param._cdata != gradient.implementation]
        if swapped:
            raise InvalidArgumentError(
                f"parameters of {self.settings.prefix} were swapped with other tensors, which now have the parameters' hooks, "
                f"so the parameters' gradients are not reduced: {', '.join(swapped)}. Wrap the optimizer again after "
                "torch.utils.swap_tensors, on all ranks (module.to() calls swap_tensors if "
                "torch.__future__.set_swap_module_params_on_conversion says so)"
            )

    def _require_no_tangents(self) -> None:
        """Refuses gradients that have a tangent of autograd's forward mode, because hvdlite does not reduce tangents.

        Raises:
            UnsupportedError: a gradient has a tangent.
        """
        if forward_ad._current_level < 0:
            return  # outside of forward mode
        for gradient in self._gradients.values():
            grad = gradient.param.grad
            if grad is not None and forward_ad.unpack_dual(grad).tangent is not None:  # type: ignore[no-untyped-call]
                raise UnsupportedError(
                    f"the gradient of parameter {gradient.name!r} has a tangent of torch.autograd.forward_ad, which is not "
                    "reduced: call backward() inside of no_sync(), and reduce gradient and tangent (unpack_dual) by hand"
                )

    # --- for the optimizer ------------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """Makes sure that all gradients are reduced. Collective, unless the passes since the last step have reduced them all.

        If backward passes have left nothing to reduce, and nothing was reduced since the last step or reset, this method
        assumes that the user's own code has written the gradients. It reduces them as they are.
        """
        self.settle()
        if not self._gradients or (self.turn and not self.local_gradients):
            return
        self._use_engine()
        self.begin_by_hand()
        if self.local_gradients:
            self.reduce(strict=True)
            return
        self._require_hooks()  # if all parameters were swapped, no hook has noticed a pass
        unreduced = [
            gradient for gradient in self._gradients.values() if not gradient.filled and gradient.param.grad is not None
        ]
        written = [gradient for gradient in unreduced if not (gradient.dirty or gradient.is_zero())]
        for gradient in unreduced:
            if gradient.param.requires_grad or not gradient.is_zero():  # zeros of a frozen parameter need no reduction
                gradient.claim()
        self.reduce(strict=True)
        for gradient in written:
            gradient.filled = False  # what is in .grad at the next step counts as the user's again

    def weigh(self, weight: float | None) -> None:
        """Sets the weight of this rank's gradients, until the next call.

        If several passes are reduced together, call this method before each of them: then the weights add up.
        """
        if not (self.local_gradients and self._weighed):
            self._weight_before = 0.0
        elif self._has_passed:
            self._weight_before = self.weight or 0.0
        self.weight = None if weight is None else self._weight_before + weight
        self._weighed, self._has_passed = True, False

    def coding_of(self, param: torch.Tensor) -> dict[str, Any]:
        """What the compression stores for a parameter's gradient. This reducer must handle the parameter."""
        return self._gradients[id(param)].coding

    def note_step(self, *_: Any) -> None:
        """Notes, for the start check, that the optimizer has taken a step."""
        self.check.updated = True

    def set_passes_per_step(self, passes: int) -> None:
        """Changes how many passes are added up before a reduction. Call `settle` before, and `start_step` afterwards."""
        self.passes_per_step = passes
        self.settings = replace(self.settings, backward_passes_per_step=passes)
        if self.settings.average_aggregated_gradients:
            self._drop_plan()  # the prepared requests contain the division by the number of passes

    def after_reset(self, keeps: bool) -> None:
        """Notes that the optimizer has reset its gradients: to zeros if `keeps` is True, else to None."""
        self._keeps = keeps
        for gradient in self._gradients.values():
            gradient.forget()
        for param in self._handed_over:
            owner = owner_of(param)
            if owner is not None and not owner._gradients[id(param)].dirty:  # a dirty one is part of its owner's next pass
                owner._gradients[id(param)].forget()
        self.reset()
