"""Buckets of gradients as requests to the engine, and what becomes of the results.

A bucket is launched once in a pass: its gradients become requests that the engine accepts together. The `Flight` that comes
of it owns the memory that the engine reads and writes until each result has landed in its parameter's ``.grad``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hvdlite.backends import backend_of
from hvdlite.errors import HvdliteError, InvalidArgumentError
from hvdlite.requests import Kind, Request, tensor_name
from hvdlite.runtime import RUNTIME
from hvdlite.torch.slots import Slot, WireForm
from hvdlite.torch.sparse import join_rows, rows_of

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Result

__all__ = ["Bucket", "DenseBucket", "Flight", "Item", "SparseBucket"]

# One request: the slot, its gradient (None if this rank has none), the memory sent, and what decoding needs.
Item = tuple[Slot, torch.Tensor | None, torch.Tensor, Any]


class Flight:
    """The requests of one launched bucket.

    Attributes:
        handles: those of the engine's that have not been waited for.
        items: the requests.
        outcomes: of the items, in order, as far as they have been waited for: what the bucket needs of a result, or an error.
        landed: how many items are done with.
        in_place: did all go well, and may all gradients be where they have to be already?

    """

    __slots__ = ("bucket", "handles", "in_place", "items", "landed", "outcomes")

    def __init__(self, bucket: "Bucket", handles: list[int], items: Sequence[Item]) -> None:
        self.bucket = bucket
        self.handles = handles
        self.items = items
        self.outcomes: list[Any] = []
        self.landed = 0
        self.in_place = False

    def land(self, strict: bool) -> HvdliteError | None:
        """Puts all results where they belong. Called without gradient recording, after `Bucket.wait`.

        Args:
            strict: must ``param.grad`` still be the tensor that was sent? If not strict, the result is dropped where the
                user has replaced it.

        Returns:
            The first error of all items, or None.

        """
        if self.in_place and _all_are_there(self.items):
            self.landed = len(self.items)
            return None
        failure: HvdliteError | None = None
        land = self.bucket.land
        for place in range(self.landed, len(self.items)):
            item, outcome = self.items[place], self.outcomes[place]
            self.landed += 1
            try:
                if isinstance(outcome, HvdliteError):
                    raise outcome
                land(item, outcome, strict)
            except HvdliteError as error:
                failure = failure or error
                RUNTIME.keep_after(error, self)
                if not item[0].dirty:
                    item[0].merge()
        return failure


def _all_are_there(items: Sequence[Item]) -> bool:
    """Was every gradient reduced where it is, and is it still there? Then nothing but that it is filled has to be noted."""
    for slot, grad, wire, _ in items:
        if wire is not grad or slot.param.grad is not grad or slot.aside is not None or slot.sparse_dim is not None:
            return False
        slot.filled = True
    return True


class Bucket(Protocol):
    """Gradients that are launched together.

    Attributes:
        slots: the members, in the order that all ranks have.
        missing: how many gradients of this pass are not there yet.
        launched: the last pass in which the bucket was launched.

    """

    slots: Sequence[Slot]
    missing: int
    launched: int

    def launch(self, engine: "Engine", turn: int, wake: bool) -> Flight:
        """Submits the gradients; `turn` counts the passes of one step, whose names differ."""

    def wait(self, engine: "Engine", flight: Flight) -> None:
        """Waits for all that the flight still waits for. If a signal interrupts it, it can be called again."""

    def land(self, item: Item, outcome: Any, strict: bool) -> None:
        """Puts one result where it belongs; see `Flight.land`."""

    def close(self, engine: "Engine") -> None:
        """The plan is given up; what is in flight may still land."""


class DenseBucket:
    """Gradients of one dtype that the engine fuses, always in the same layout. The engine knows them as a prepared group."""

    def __init__(
        self,
        label: str,
        members: Sequence[tuple[Slot, WireForm]],
        op: int,
        process_set: int,
        prescale: float,
        postscale: float,
    ) -> None:
        self.slots: Sequence[Slot] = [slot for slot, _ in members]
        self.missing = len(members)
        self.launched = 0
        self._label = label
        self.members = members
        self._members = [(slot, slot.param, form) for slot, form in members]
        self._forms = dict(members)
        self._op = op
        self._process_set = process_set
        self._prescale = prescale
        self._postscale = postscale
        self._groups: list[int] = []  # prepared, one for each of the passes of a step

    def _prepare(self, engine: "Engine", turn: int) -> int:
        while len(self._groups) <= turn:
            suffix = f"@{len(self._groups) + 1}" if self._groups else ""
            requests = [
                Request(
                    Kind.ALLREDUCE,
                    tensor_name(Kind.ALLREDUCE, slot.name + suffix),
                    form.dtype,
                    form.shape,
                    output_ptr=0 if slot.place is None else slot.place.address,
                    op=self._op,
                    process_set=self._process_set,
                    prescale=self._prescale,
                    postscale=self._postscale,
                    group=self._label + suffix,
                    group_size=len(self._members),
                    group_index=index,
                    arena=0 if slot.place is None else slot.place.arena,
                )
                for index, (slot, _, form) in enumerate(self._members)
            ]
            self._groups.append(engine.prepare(requests))
        return self._groups[turn]

    def launch(self, engine: "Engine", turn: int, wake: bool) -> Flight:
        """Submits all members, those without a gradient as absent."""
        group = self._groups[turn] if turn < len(self._groups) else self._prepare(engine, turn)
        pointers: list[int] = []
        absent: list[int] = []
        items: list[Item] = []
        for slot, param, form in self._members:
            grad = param.grad if slot.dirty else None
            context = None
            if grad is None:
                if slot.dirty:
                    slot.forget()  # somebody has reset it
                absent.append(len(items))
                free = None if slot.place is None else slot.place.take()
                wire = form.blank() if free is None else free
            elif form.fits(grad):
                wire = grad
            else:
                with torch.no_grad():
                    wire, context = form.encode(grad)
            slot.dirty = False
            pointers.append(wire.data_ptr())
            items.append((slot, grad, wire, context))
        return Flight(self, [engine.submit_prepared(group, pointers, absent, wake)], items)

    def wait(self, engine: "Engine", flight: Flight) -> None:
        """Once for all members."""
        if flight.handles:
            contributors, errors = engine.wait_many(flight.handles)
            flight.handles = []
            flight.in_place = not errors
            flight.outcomes = [errors.get(place, count) for place, count in enumerate(contributors)] if errors else contributors

    def land(self, item: Item, outcome: Any, strict: bool) -> None:
        """The outcome: how many ranks had a gradient."""
        slot, grad, wire, context = item
        if outcome == 0:
            return  # used on no rank: as in one process, there is no gradient
        slot.filled = True
        form = self._forms[slot]
        if grad is None:
            slot.deliver(form.decode(wire, form.context_of_blank()))
        elif _is_there(slot, grad, strict):
            if slot.sparse_dim is not None:
                slot.replace(grad, form.decode(wire, context).to_sparse(slot.sparse_dim))
            elif wire is not grad:
                value = form.decode(wire, context)
                if grad.layout is torch.strided:
                    grad.copy_(value)
                else:
                    slot.replace(grad, value)
            if slot.aside is not None and not slot.dirty:
                slot.merge()

    def close(self, engine: "Engine") -> None:
        """The engine may forget the groups."""
        for group in self._groups:
            engine.release_prepared(group)
        self._groups.clear()


def _is_there(slot: Slot, grad: torch.Tensor, strict: bool) -> bool:
    """Is the tensor that was sent still the parameter's gradient, or set aside as a part of it?"""
    if slot.param.grad is grad or slot.aside is grad:
        return True
    if strict:
        raise InvalidArgumentError(
            f"the gradient of parameter {slot.name!r} was replaced while it was being reduced: something that runs inside "
            "backward() assigned to .grad. Do that after backward() has returned."
        )
    return False


class SparseBucket:
    """One parameter whose gradient is sparse: every rank gets all ranks' rows and adds them up."""

    def __init__(self, slot: Slot, divisor: int, process_set: int) -> None:
        self.slots: Sequence[Slot] = [slot]
        self.missing = 1
        self.launched = 0
        self._divisor = divisor
        self._process_set = process_set
        self._indices: torch.Tensor | None = None  # landed before the values

    def launch(self, engine: "Engine", turn: int, wake: bool) -> Flight:
        """Submits the indices and the values of this rank's rows, of which there may be none."""
        slot = self.slots[0]
        grad = slot.param.grad if slot.dirty else None
        if slot.dirty and grad is None:
            slot.forget()  # somebody has reset it
        slot.dirty = False
        with torch.no_grad():
            indices, values = rows_of(grad, slot.param, slot.sparse_dim or 1)
        suffix = f"@{turn + 1}" if turn else ""
        backend = backend_of(values)
        items: list[Item] = []
        requests = []
        for part, tensor in (("indices", indices), ("values", values)):
            exported = backend.export(tensor, False)
            name = tensor_name(Kind.ALLGATHER, f"{slot.name}.{part}{suffix}")
            head = (Kind.ALLGATHER, name, exported.dtype, exported.shape, exported.pointer, 0)
            requests.append((*head, 1, 0, self._process_set))
            items.append((slot, grad, exported.owner, part))
        self._indices = None
        return Flight(self, engine.submit_many(requests, wake), items)

    def wait(self, engine: "Engine", flight: Flight) -> None:
        """One after the other: each result has memory of its own."""
        while flight.handles:
            outcome: Result | HvdliteError
            try:
                outcome = engine.wait(flight.handles[0])
            except HvdliteError as error:
                outcome = error
            flight.outcomes.append(outcome)
            del flight.handles[0]

    def land(self, item: Item, outcome: Any, strict: bool) -> None:
        """The indices land first, then the values, which make the gradient. The outcome: the engine's result."""
        slot, grad, sent, _ = item
        result: Result = outcome
        shape = result.shape
        rows = backend_of(sent).wrap(memoryview(b"") if 0 in shape else result.take_data(), shape, sent)
        if self._indices is None:
            self._indices = rows
            return
        if grad is None:
            if shape[0]:
                slot.filled = True
                slot.deliver(join_rows(self._indices, rows, slot.param, self._divisor))
        elif _is_there(slot, grad, strict):
            slot.filled = True
            slot.replace(grad, join_rows(self._indices, rows, slot.param, self._divisor))
            if slot.aside is not None and not slot.dirty:
                slot.merge()

    def close(self, engine: "Engine") -> None:
        """Nothing was prepared."""
