"""Reduces the gradients of one optimizer's parameters while backward() runs, so that they are averaged when it returns.

The life of a pass (one backward, with whatever backwards are nested in it):

1. Before backward adds to a gradient, `_before` sets aside what is finished there (see `Slot`).
2. After it has, `_after` counts the gradient in its bucket; a complete bucket is launched at once.
3. When the pass is over autograd calls `task_ended`: buckets that are not complete are launched with their missing members
   absent, and all results are waited for.

What has to be made good where this did not happen (backward raised, or there is no end of a task to be had) is made good by
`settle`, at the latest in front of the optimizer's step.
"""

import itertools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from hvdlite._engine import GradientHook, PassState
from hvdlite.errors import HvdliteError
from hvdlite.ops import allreduce_async_
from hvdlite.requests import Sum
from hvdlite.runtime import RUNTIME
from hvdlite.torch.agreement import Settings, agree
from hvdlite.torch.arena import make_places
from hvdlite.torch.derivatives import require_no_tangents
from hvdlite.torch.flights import Bucket, DenseBucket, Flight, has_moved
from hvdlite.torch.gpu import CPU
from hvdlite.torch.hooks import AtEnd, fetch_ahead, install
from hvdlite.torch.passes import NO_TASK, TOO_MANY_PASSES, EndOfTask, current_task, is_nested, when_task_ends
from hvdlite.torch.plan import Groups, make_buckets
from hvdlite.torch.slots import Slot, declared_dtype, require_hooks
from hvdlite.torch.start_check import leaves_of_gradients, make_check

if TYPE_CHECKING:
    from hvdlite._engine import Arena, Engine
    from hvdlite.handles import Handle

__all__ = ["Reducer", "owner_of"]

_TURNS = 4  # passes of one step whose names differ, so that ranks with unequal numbers of passes are found out

_owners: dict[int, "weakref.ref[Reducer]"] = {}  # by id of the parameter, which its reducer keeps alive


def owner_of(param: torch.Tensor) -> "Reducer | None":
    """The reducer that reduces a parameter's gradient at present."""
    reference = _owners.get(id(param))
    owner = None if reference is None else reference()
    return owner if owner is not None and owner.holds(param) else None


class Reducer(PassState):
    """The gradients of one wrapped optimizer. It keeps no reference to the optimizer."""

    def __init__(self, settings: Settings, optimizer: torch.optim.Optimizer) -> None:
        self.settings = settings
        self.passes_per_step = settings.passes_per_step
        self.suspended = 0  # > 0 inside no_sync()
        self._slots: dict[int, Slot] = {}
        slots = self._slots.values()
        self.check = make_check(optimizer, settings, lambda: [(slot.name, slot.param) for slot in slots])
        self._hooks: dict[int, list[Any]] = {}
        # Autograd has a thread for each GPU, so the hooks of parameters on several devices run at the same time.
        self._lock: threading.RLock | None = None
        self._partners: list[Reducer] = []  # have taken over parameters that our optimizer steps too
        self._borrowers: weakref.WeakSet[Reducer] = weakref.WeakSet()
        # The plan, made when gradients are reduced for the first time.
        self._buckets: Sequence[Bucket] | None = None
        self._left_out: list[Slot] = []  # in no bucket, as long as they are frozen
        self._groups: Groups = None
        self._generation = 0
        self._arena: Arena | None = None  # where the gradients have places
        self._keeps = False  # were gradients zeroed at their last reset, and not set to None?
        # The pass that is running.
        self._current_task = current_task
        self._task = NO_TASK  # graph task whose hooks run at present
        self._tasks: set[int] = set()  # those of the pass
        self._stamp = 0  # number of the pass
        self._running = False
        self._local = False  # is this pass not to be reduced?
        self._eager = False  # may complete buckets be launched before the pass is over?
        self._ever_nested = False
        self._again = False  # was something added to a gradient after it was launched?
        self._moved_aside: list[Slot] = []
        # What is in flight or owed.
        self._engine: Engine | None = None
        self._flights: deque[Flight] = deque()
        self._compared: Handle | None = None  # the start check's sum
        self._owed = False  # a pass is over but not all its buckets were launched
        self._unsettled = False
        self._local_gradients = False  # passes were not reduced yet
        self._given_up = False  # such passes were reset since the last reduction
        # Counts since the last step() or zero_grad().
        self._turn = 0  # of reductions
        self._backwards = 0

    # --- parameters -------------------------------------------------------------------------------------------------------

    def add(self, named: Iterable[tuple[str, torch.Tensor]], groups: Groups = None) -> None:
        """Takes charge of parameters, from another reducer too; the plan is made anew at the next reduction.

        Args:
            named: unique names, and the parameters in the order of the model.
            groups: the user's choice of what is reduced together, by name; None for what it was, at first by size.

        Raises:
            InvalidArgumentError: another optimizer reduces one of them in a way that cannot be reconciled.

        """
        added = [(name, param, owner_of(param)) for name, param in named]
        for name, _, owner in added:
            if owner is not None:
                self.settings.require_compatible(owner.settings, name)
        for name, param, owner in added:
            if owner is not None:
                owner._give_up(param, self)
            self._slots[id(param)] = Slot(name, param)
            _owners[id(param)] = weakref.ref(self)
        self._install_hooks([param for _, param, _ in added])
        self._groups = self._groups if groups is None else groups
        self._drop_plan()

    def _install_hooks(self, params: "Iterable[torch.Tensor]") -> None:
        if self._lock is None and len({slot.param.device for slot in self._slots.values()}) > 1:
            self._lock = threading.RLock()
            for hook in itertools.chain.from_iterable(self._hooks.values()):
                hook.remove()
            params = [slot.param for slot in self._slots.values()]
        before, after = self._before, self._after
        for param in params:
            slot = self._slots[id(param)]
            hooks: tuple[Callable[[torch.Tensor], None], Callable[[torch.Tensor], None]]
            if self._lock is None:
                hooks = GradientHook(self, slot, before, False), GradientHook(self, slot, after, True)
            else:
                hooks = partial(self._locked, before, slot), partial(self._locked, after, slot)
            self._hooks[id(param)] = install(param, *hooks)

    def _locked(self, hook: "Callable[[Slot, torch.Tensor], None]", slot: Slot, tensor: torch.Tensor) -> None:
        with self._lock or nullcontext():
            hook(slot, tensor)

    def holds(self, param: torch.Tensor) -> bool:
        """Is this reducer in charge of the parameter?"""
        return id(param) in self._slots

    def _give_up(self, param: torch.Tensor, successor: "Reducer") -> None:
        self.settle()
        self._drop_plan()
        del self._slots[id(param)]
        for hook in self._hooks.pop(id(param)):
            hook.remove()
        if successor not in self._partners:
            self._partners.append(successor)
            successor._borrowers.add(self)

    def _family(self) -> list["Reducer"]:
        """This reducer and those that reduce for its optimizer."""
        found = [self]
        for member in found:
            found += [partner for partner in member._partners if partner not in found]
        return found

    def close(self) -> None:
        """The optimizer is gone: removes the hooks, unless another optimizer relies on this reducer."""
        if len(self._borrowers):
            return
        for key, hooks in self._hooks.items():
            for hook in hooks:
                hook.remove()
            _owners.pop(key, None)
        self._hooks.clear()
        self._slots.clear()
        self._leave_flights()
        self._drop_plan()

    # --- hooks: called by autograd, for each parameter in each pass -------------------------------------------------------

    def _before(self, slot: Slot, _increment: torch.Tensor) -> None:
        """Backward is about to add to this gradient (or would, if this is autograd.grad, which adds nothing)."""
        if self._unsettled:
            self.settle()
        grad = slot.param.grad
        if grad is None:
            if slot.dirty or slot.aside is not None:
                slot.forget()  # somebody has reset it
            slot.fresh = True
        elif not (slot.dirty or slot.is_zero()):
            if not self._moved_aside:
                when_task_ends(AtEnd(self.restore))
            self._moved_aside.append(slot)  # first, so that Ctrl-C leaves nothing aside that nobody puts back
            slot.set_aside(grad)
            slot.fresh = True

    def _after(self, slot: Slot, _param: torch.Tensor) -> None:
        """Backward has added to this gradient."""
        if current_task() != self._task:
            self._enter(slot)
        if slot.fresh:
            slot.move_in()
        stamp = self._stamp
        if slot.stamp == stamp:
            if slot.bucket is not None and slot.bucket.launched == stamp:
                slot.dirty = self._again = True
            return
        slot.stamp = stamp
        slot.dirty = True
        if self._eager:
            bucket: Bucket = slot.bucket
            bucket.missing -= 1
            if bucket.device != CPU:
                bucket.see_stream()
            if not bucket.missing:
                self._launch(bucket, wake=True)

    def _enter(self, slot: Slot) -> None:
        """A hook runs in another graph task than the last hook did."""
        task = current_task()
        if task in self._tasks:  # back from a nested one
            self._task = task
            return
        nested = is_nested()
        if self._running and not nested:
            self.settle()  # the previous pass never ended
        if not self._running:
            self._begin(slot)
        if nested:
            # A parameter used inside and outside of a checkpoint gets its gradient in pieces: launch when all are there.
            self._ever_nested = True
            self._eager = False
        self._watch(task, nested)

    def _watch(self, task: int, nested: bool) -> None:
        self._task = task
        self._tasks.add(task)
        EndOfTask(self, self._stamp, nested).wait()  # where nothing is told, settle() does what is to be done

    def _begin(self, slot: Slot) -> None:
        """The first gradient of a pass is there."""
        limit = self.passes_per_step
        if limit > 1 and self._backwards >= limit and not self.suspended:
            if slot.aside is not None:
                with torch.no_grad():
                    slot.merge()
                raise AssertionError(TOO_MANY_PASSES)
            self._turn = self._backwards = 0  # the gradients were reset without telling us
        self._use_engine()
        self._stamp += 1
        self._running = True
        self._again = False
        self._local = bool(self.suspended) or self._backwards + 1 < limit
        self._eager = self._buckets is not None and not self._local and not self._ever_nested
        for bucket in self._buckets or ():
            bucket.missing = len(bucket.slots)

    def _use_engine(self) -> None:
        engine = RUNTIME.require()
        if engine is not self._engine:  # the first one, or hvdlite was shut down and initialised again
            self._drop_plan()
            self._leave_flights()
            self._engine = engine
        elif any(has_moved(bucket) for bucket in self._buckets or ()) or any(
            slot.param.requires_grad for slot in self._left_out
        ):
            self._drop_plan()  # the model was moved to another device or dtype, or its base thawed, as on all ranks

    # --- the end of a pass: PassListener ----------------------------------------------------------------------------------

    def task_ended(self, end: EndOfTask) -> None:
        """The pass is over: backward() returns when this has."""
        if self._running and end.serial == self._stamp:
            self._finish_pass()
            if self._owed:
                self._reduce(strict=True)
                require_no_tangents((slot.name, slot.param.grad) for slot in self._slots.values())
            else:
                self._unsettled = False

    def task_left(self, end: EndOfTask) -> None:
        """The task around a nested one is current now; its end has to be noticed as well."""
        if not self._running or end.serial != self._stamp:
            return
        task = current_task()
        if task == NO_TASK:
            self.task_lost(end)
        elif task not in self._tasks:
            self._watch(task, is_nested(leaving=True))
        else:
            self._task = task

    def task_lost(self, end: EndOfTask) -> None:
        """Backward raised, or nothing calls back: others may wait for our part, so it is sent at once, but not waited for."""
        if not self._running or end.serial != self._stamp:
            return
        self._finish_pass()
        if self._owed:
            with suppress(HvdliteError):  # settle() meets the same error where it can be raised
                if self._buckets is None:
                    self._plan()  # which does wait, but otherwise the others could not go on
                self._launch_rest()

    def _finish_pass(self) -> None:
        """There are no more hooks. What is to be done now settle() goes on with, should Ctrl-C come at any moment."""
        self._unsettled = True
        self._owed = not self._local
        self._local_gradients |= self._local
        self._task = NO_TASK
        self._tasks.clear()
        self._backwards += not self.suspended
        self._running = False

    # --- reduction --------------------------------------------------------------------------------------------------------

    def _reduce(self, strict: bool) -> None:
        """Reduces all gradients of this rank that were not, and waits for those in flight."""
        if self._buckets is None:
            self._plan()
        self._owed = self._unsettled = True
        self._launch_rest()
        self._land(strict)
        if strict and any(bucket.missing for bucket in self._buckets or ()):
            require_hooks(self._slots.values(), self.settings.prefix)

    def _land(self, strict: bool) -> None:
        """Waits for everything in flight, and reduces what was added to gradients after they were launched."""
        self._wait(strict)
        if self._again:
            self._unsettled = True  # Ctrl-C leaves what is not launched to settle(), under the same name
            self._stamp += 1
            for bucket in self._buckets or ():
                if any(slot.dirty for slot in bucket.slots):
                    self._launch(bucket, wake=False)
            self._again = False
            self._turn += 1
            self._wait(strict)

    def _drop_plan(self) -> None:
        for bucket in self._buckets or ():
            if self._engine is not None:
                bucket.close(self._engine)
            for slot in bucket.slots:
                slot.place = None
        self._buckets = None
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _plan(self) -> None:
        """Collective over the process set: checks that all ranks have the same parameters, and cuts them into buckets."""
        slots = list(self._slots.values())
        self._install_hooks(())  # parameters that were moved may be on several devices now
        self._generation += 1
        agreed = agree(self.settings, slots, repr(self._groups), self._generation, self._keeps, unchecked=self.check.pending)
        if agreed.unchecked:
            self.check.begin_anew()
        for place, dimensions in agreed.sparse.items():
            slots[place].sparse_dim = dimensions
        for place, slot in enumerate(slots):
            slot.dtype = declared_dtype(slot.param) or agreed.dtypes.get(place, slot.param.dtype)
        self._buckets = make_buckets(self.settings, slots, self._groups, self._generation)
        wanted = self.settings.gradient_as_bucket_view
        if wanted or (wanted is None and agreed.kept):
            self._make_places()
        expected = [slot for bucket in self._buckets for slot in bucket.slots]
        planned = set(expected)
        self._left_out = [slot for slot in slots if slot not in planned]
        fetch_ahead([((slot, slot.param), self._hooks[id(slot.param)]) for slot in expected])

    def _make_places(self) -> None:
        """Collective over the process set: gives the gradients places in an arena, if there can be one."""
        dense = [bucket for bucket in self._buckets or () if isinstance(bucket, DenseBucket)]
        members = [member for bucket in dense for member in bucket.members]
        name = f"{self.settings.prefix}.plan{self._generation}.arena"
        self._arena, reason = make_places(name, members, self.settings.process_set)
        for slot in self._slots.values():
            if slot.dirty:
                slot.move_in()
        if self._arena is None and self.settings.process_set.rank() == 0:
            level = logging.WARNING if self.settings.gradient_as_bucket_view else logging.INFO
            logging.getLogger("hvdlite").log(level, f"gradients of {self.settings.prefix} are no views of an arena: {reason}")

    def _launch_rest(self) -> None:
        """Launches what was not launched in this pass: all buckets that some rank may have a gradient for, which a parameter
        that was frozen since may have from a pass that was kept back.
        """
        everything = self._local_gradients or self._given_up
        for bucket in self._buckets or ():
            if bucket.launched != self._stamp and (
                everything or any(slot.dirty or slot.param.requires_grad for slot in bucket.slots)
            ):
                self._launch(bucket, wake=False)
        if self.check.pending and self._compared is None:
            rows = self.check.begin()
            self._compared = allreduce_async_(rows, name=self.check.name, op=Sum, process_set=self.settings.process_set)
        self._owed = self._local_gradients = self._given_up = False
        self._turn += 1

    def _launch(self, bucket: Bucket, wake: bool) -> None:
        assert self._engine is not None  # since the pass began
        if self.check.pending and self.check.watching and self._compared is None:
            self.check.see(leaves_of_gradients(slot.param for slot in bucket.slots if slot.dirty))
        bucket.launch(self._engine, self._turn % _TURNS, wake, self._stamp, self._flights.append)

    def _wait(self, strict: bool) -> None:
        """Waits for everything in flight. Raises the first failure after all have ended."""
        engine = self._engine
        if engine is None or engine is not RUNTIME.engine:
            self._leave_flights()
            self._again = False
            RUNTIME.require()
            return
        failure: HvdliteError | None = None
        with torch.no_grad():
            while self._flights:
                flight = self._flights[0]
                flight.bucket.wait(engine, flight)  # Ctrl-C leaves it in flight, and unsettled
                error = flight.land(strict)
                failure = failure or error
                self._flights.popleft()
            try:
                self._end_check()
            except HvdliteError as error:
                failure = failure or error
        self._unsettled = False
        if failure is not None:
            raise failure

    def _end_check(self) -> None:
        if self._compared is not None:
            rows = self._compared.synchronize()
            self._compared = None
            self.check.end(rows)

    def _leave_flights(self) -> None:
        """Nobody waits for what is in flight any more; the engine keeps the memory as long as it may use it."""
        self._flights.clear()
        self._compared = None

    def settle(self) -> None:
        """Makes good what the end of the last pass did not do. Does nothing if all is well."""
        if self._running:
            self._finish_pass()
        self.restore()
        if self._unsettled:
            (self._reduce if self._owed else self._land)(strict=False)
            with torch.no_grad():
                for slot in self._slots.values():
                    if slot.aside is not None and not slot.dirty:
                        slot.merge()  # Ctrl-C came before it

    def restore(self) -> None:
        """Puts back what was set aside for increments that did not come."""
        for slot in self._moved_aside:
            if slot.param.grad is None:
                slot.merge()
        self._moved_aside.clear()

    # --- for the optimizer ------------------------------------------------------------------------------------------------

    def complete(self) -> None:
        """Sees to it that all gradients are reduced. Collective over the process set if they are not.

        Where no backward has filled them since they were reset, what ``.grad`` holds was put there by the user's own code
        and is reduced as it is.
        """
        for reducer in self._family():
            reducer._complete()

    def _complete(self) -> None:
        self.settle()
        if not self._slots or (self._turn and not self._local_gradients):
            return
        self._use_engine()
        self._stamp += 1
        if self._local_gradients:
            self._reduce(strict=True)
            return
        require_hooks(self._slots.values(), self.settings.prefix)  # if all have lost theirs, no pass is noticed
        unreduced = [slot for slot in self._slots.values() if not slot.filled and slot.param.grad is not None]
        written = [slot for slot in unreduced if not (slot.dirty or slot.is_zero())]
        for slot in unreduced:
            if slot.param.requires_grad or not slot.is_zero():  # a frozen one's zeros concern nobody
                slot.claim()
        self._reduce(strict=True)
        for slot in written:
            slot.filled = False  # what is there at the next step is the user's again

    def note_step(self, *_: Any) -> None:
        """The optimizer has taken a step."""
        self.check.updated = True

    def set_passes_per_step(self, passes: int) -> None:
        """Changes how many passes are added up before a reduction; those made so far do not count."""
        self.settle_family()
        self.passes_per_step = passes
        self.settings = replace(self.settings, passes_per_step=passes)
        if self.settings.average_passes:
            self._drop_plan()  # its requests hold the factor
        self.next_step()

    def settle_family(self) -> None:
        """`settle` for all that reduce for the optimizer."""
        for reducer in self._family():
            reducer.settle()

    def next_step(self) -> None:
        """Counts anew: the optimizer takes a step."""
        for reducer in self._family():
            reducer._turn = reducer._backwards = 0

    def after_reset(self, keeps: bool) -> None:
        """The optimizer has reset its gradients: to zeros if it keeps them, else to None."""
        self._keeps = keeps
        for slot in self._slots.values():
            slot.forget()
        self._given_up |= self._local_gradients
        self._local_gradients = False
        self.next_step()
