"""Reduces the gradients of one optimizer's parameters while backward() runs, so that they are averaged when it returns.

The life of a pass (one backward, with whatever backwards are nested in it) is native code, `PassDriver`:

1. Before backward adds to a gradient, what is finished there is set aside (see `Slot`).
2. After it has, the gradient is counted in its bucket; a complete bucket is launched at once.
3. When the pass is over buckets that are not complete are launched with their missing members absent, and all results are
   waited for. What has to be made good where this did not happen (backward raised, or there is no end of a task to be had) is
   made good by `settle`, at the latest in front of the optimizer's step.

Here is what it asks for: the plan and the engine, what becomes of a bucket, and what takes torch to be done.
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

from hvdlite._engine import PassDriver
from hvdlite.errors import HvdliteError
from hvdlite.ops import allreduce_async_
from hvdlite.requests import Sum
from hvdlite.runtime import RUNTIME
from hvdlite.torch.agreement import Settings, agree
from hvdlite.torch.arena import make_places
from hvdlite.torch.derivatives import require_no_tangents
from hvdlite.torch.flights import Bucket, DenseBucket, Flight, has_moved
from hvdlite.torch.hooks import AtEnd, fetch_ahead, install
from hvdlite.torch.passes import TOO_MANY_PASSES, EndOfTask, current_task, is_nested, when_task_ends
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


class Reducer(PassDriver):
    """The gradients of one wrapped optimizer. It keeps no reference to the optimizer."""

    buckets: list[Bucket]

    def __init__(self, settings: Settings, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(current_task, is_nested)
        self.settings = settings
        self.passes_per_step = settings.passes_per_step
        self.weight: float | None = None  # of this rank's gradients; None: all ranks' count alike
        self._weighed = False  # has it been set since gradients were last reduced?
        self._slots: dict[int, Slot] = {}
        slots = self._slots.values()
        self.check = make_check(optimizer, settings, lambda: [(slot.name, slot.param) for slot in slots])
        self._hooks: dict[int, list[Any]] = {}
        self._partners: list[Reducer] = []  # have taken over parameters that our optimizer steps too
        self._borrowers: weakref.WeakSet[Reducer] = weakref.WeakSet()
        # The plan, made when gradients are reduced for the first time.
        self._left_out: list[Slot] = []  # in no bucket, as long as they are frozen
        self._groups: Groups = None
        self._generation = 0
        self._arena: Arena | None = None  # where the gradients have places
        self._keeps = False  # were gradients zeroed at their last reset, and not set to None?
        self._moved_aside: list[Slot] = []
        # What is in flight.
        self._engine: Engine | None = None
        self._flights: deque[Flight] = deque()
        self._compared: Handle | None = None  # the start check's sum

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
        self._use_lock()
        for _, param, _ in added:
            self._hooks[id(param)] = install(param, self, self._slots[id(param)])
        self._groups = self._groups if groups is None else groups
        self._drop_plan()

    def _use_lock(self) -> None:
        """Autograd has a thread for each GPU, so the hooks of parameters on several devices run at the same time."""
        if self.lock is None and len({slot.param.device for slot in self._slots.values()}) > 1:
            self.lock = threading.RLock()

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

    # --- what a pass asks for ---------------------------------------------------------------------------------------------

    def _set_aside(self, slot: Slot, grad: torch.Tensor) -> None:
        """Backward is about to add to something finished."""
        if not self._moved_aside:
            when_task_ends(AtEnd(self.restore))
        self._moved_aside.append(slot)  # first, so that Ctrl-C leaves nothing aside that nobody puts back
        slot.set_aside(grad)

    def _refuse_pass(self, slot: Slot) -> None:
        """There are too many passes before a step, by this gradient's increment."""
        with torch.no_grad():
            slot.merge()
        raise AssertionError(TOO_MANY_PASSES)

    def _watch(self, stamp: int, nested: bool) -> None:
        """Has the end of the current task told."""
        EndOfTask(self, stamp, nested).wait()

    def _use_engine(self) -> None:
        if self._engine is None or RUNTIME.engine is not self._engine:
            engine = RUNTIME.require()  # the first one, or hvdlite was shut down and initialised again
            self._drop_plan()
            self._leave_flights()
            self._engine = engine
        elif any(has_moved(bucket) for bucket in self.buckets) or any(slot.param.requires_grad for slot in self._left_out):
            self._drop_plan()  # the model was moved to another device or dtype, or its base thawed, as on all ranks

    def _drop_plan(self) -> None:
        for bucket in self.buckets:
            if self._engine is not None:
                bucket.close(self._engine)
            for slot in bucket.slots:
                slot.place = None
        self.drop_plan()
        if self._arena is not None:
            self._arena.close()
            self._arena = None

    def _plan(self) -> None:
        """Collective over the process set: checks that all ranks have the same parameters, and cuts them into buckets."""
        slots = list(self._slots.values())
        self._use_lock()  # parameters that were moved may be on several devices now
        self._generation += 1
        agreed = agree(self.settings, slots, repr(self._groups), self._generation, self._keeps, unchecked=self.check.pending)
        if agreed.unchecked:
            self.check.begin_anew()
        for place, dimensions in agreed.sparse.items():
            slots[place].sparse_dim = dimensions
        for place, slot in enumerate(slots):
            slot.dtype = declared_dtype(slot.param) or agreed.dtypes.get(place, slot.param.dtype)
        self.set_plan(make_buckets(self.settings, slots, self._groups, self._generation))
        wanted = self.settings.gradient_as_bucket_view
        if wanted or (wanted is None and agreed.kept):
            self._make_places()
        expected = [slot for bucket in self.buckets for slot in bucket.slots]
        planned = set(expected)
        self._left_out = [slot for slot in slots if slot not in planned]
        fetch_ahead([((slot, slot.param), self._hooks[id(slot.param)]) for slot in expected])

    def _make_places(self) -> None:
        """Collective over the process set: gives the gradients places in an arena, if there can be one."""
        dense = [bucket for bucket in self.buckets if isinstance(bucket, DenseBucket)]
        members = [member for bucket in dense for member in bucket.members]
        name = f"{self.settings.prefix}.plan{self._generation}.arena"
        self._arena, reason = make_places(name, members, self.settings.process_set)
        for slot in self._slots.values():
            if slot.dirty:
                slot.move_in()
        if self._arena is None and self.settings.process_set.rank() == 0:
            level = logging.WARNING if self.settings.gradient_as_bucket_view else logging.INFO
            logging.getLogger("hvdlite").log(level, f"gradients of {self.settings.prefix} are no views of an arena: {reason}")

    # --- what becomes of a bucket -----------------------------------------------------------------------------------------

    def _launch(self, number: int, wake: bool) -> None:
        assert self._engine is not None  # since the pass began
        bucket = self.buckets[number]
        if self.check.pending and self.check.watching and self._compared is None:
            self.check.see(leaves_of_gradients(slot.param for slot in bucket.slots if slot.dirty))
        self._weighed = False
        bucket.launch(self._engine, self, number, self.turn % _TURNS, wake, self.weight, self._flights.append)

    def _begin_check(self) -> None:
        if self.check.pending and self._compared is None:
            rows = self.check.begin()
            self._compared = allreduce_async_(rows, name=self.check.name, op=Sum, process_set=self.settings.process_set)

    def _wait(self, strict: bool) -> None:
        """Waits for everything in flight. Raises the first failure after all have ended."""
        engine = self._engine
        if engine is None or engine is not RUNTIME.engine:
            self._leave_flights()
            self.forget_additions()
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
        self.settled()
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

    def restore(self) -> None:
        """Puts back what was set aside for increments that did not come."""
        for slot in self._moved_aside:
            if slot.param.grad is None:
                slot.merge()
        self._moved_aside.clear()

    def _merge_rest(self) -> None:
        """Adds up what Ctrl-C has left in two parts."""
        with torch.no_grad():
            for slot in self._slots.values():
                if slot.aside is not None and not slot.dirty:
                    slot.merge()

    def _require_hooks(self) -> None:
        require_hooks(self._slots.values(), self.settings.prefix)

    def _require_no_tangents(self) -> None:
        if forward_ad._current_level >= 0:  # inside of forward mode
            require_no_tangents((slot.name, slot.param.grad) for slot in self._slots.values())

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
        if not self._slots or (self.turn and not self.local_gradients):
            return
        self._use_engine()
        self.begin_by_hand()
        if self.local_gradients:
            self.reduce(strict=True)
            return
        self._require_hooks()  # if all have lost theirs, no pass is noticed
        unreduced = [slot for slot in self._slots.values() if not slot.filled and slot.param.grad is not None]
        written = [slot for slot in unreduced if not (slot.dirty or slot.is_zero())]
        for slot in unreduced:
            if slot.param.requires_grad or not slot.is_zero():  # a frozen one's zeros concern nobody
                slot.claim()
        self.reduce(strict=True)
        for slot in written:
            slot.filled = False  # what is there at the next step is the user's again

    def weigh(self, weight: float | None) -> None:
        """Sets how much this rank's gradients count from now on. The weights of passes that are reduced together add up."""
        for reducer in self._family():
            together = reducer.passes_per_step > 1 and reducer._weighed
            before = reducer.weight if together and reducer.weight is not None else 0.0
            reducer.weight = None if weight is None else before + weight
            reducer._weighed = True

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
            reducer.start_step()

    def after_reset(self, keeps: bool) -> None:
        """The optimizer has reset its gradients: to zeros if it keeps them, else to None."""
        self._keeps = keeps
        for slot in self._slots.values():
            slot.forget()
        self.reset()
        self.next_step()
