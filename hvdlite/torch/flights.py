"""Buckets of gradients as requests to the engine, and what becomes of the results.

A bucket is launched once in a pass: its gradients become requests that the engine accepts together. The `Flight` that comes
of it owns the memory that the engine reads and writes until each result has landed in its parameter's ``.grad``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hvdlite.backends import backend_of
from hvdlite.errors import InvalidArgumentError
from hvdlite.requests import Kind, tensor_name
from hvdlite.torch.slots import Slot, WireForm
from hvdlite.torch.sparse import join_rows, rows_of

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Result

__all__ = ["Bucket", "DenseBucket", "Flight", "Item", "SparseBucket"]

_ABSENT = 1  # HVDLITE_FLAG_ABSENT: this rank has no value but takes the result
_CPU = -1

# One request: the slot, its gradient (None if this rank has none), the memory sent, and what decoding needs.
Item = tuple[Slot, torch.Tensor | None, torch.Tensor, Any]


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

    def launch(self, engine: "Engine", turn: int, wake: bool) -> "Flight":
        """Submits the gradients; `turn` counts the passes of one step, whose names differ."""

    def land(self, item: Item, result: "Result", strict: bool) -> None:
        """Puts a result where it belongs. Called without gradient recording.

        Args:
            item: the request.
            result: of the operation, which has ended.
            strict: must ``param.grad`` still be the tensor that was sent? If not strict, the result is dropped where the
                user has replaced it.

        """


class Flight:
    """The requests of one launched bucket.

    Attributes:
        handles: the engine's, in the order of the items.
        landed: how many of them have been waited for.

    """

    __slots__ = ("bucket", "handles", "items", "landed")

    def __init__(self, bucket: Bucket, handles: Sequence[int], items: Sequence[Item]) -> None:
        self.bucket = bucket
        self.handles = handles
        self.items = items
        self.landed = 0


_Row = tuple[Slot, torch.Tensor, WireForm, tuple[Any, ...], tuple[Any, ...]]


class DenseBucket:
    """Gradients of one dtype that the engine fuses, always in the same layout."""

    def __init__(
        self, label: str, members: Sequence[tuple[Slot, WireForm]], op: int, process_set: int, predivide: float
    ) -> None:
        self.slots: Sequence[Slot] = [slot for slot, _ in members]
        self.missing = len(members)
        self.launched = 0
        self._label = label
        self.members = members
        self._forms = dict(members)
        self._scale = (op, 0, process_set, 1.0 / predivide, predivide)
        self._rows: list[list[_Row]] = []

    def _rows_of(self, turn: int) -> "list[_Row]":
        """For each member what its request has before and after the pointers, in one of the passes of a step."""
        while len(self._rows) <= turn:
            suffix = f"@{len(self._rows) + 1}" if self._rows else ""
            group = (self._label + suffix, len(self.members))
            rows = []
            for index, (slot, form) in enumerate(self.members):
                head = (Kind.ALLREDUCE, tensor_name(Kind.ALLREDUCE, slot.name + suffix, 0), form.dtype, form.shape)
                rows.append((slot, slot.param, form, head, (*self._scale, *group, index, (), _CPU, 0)))
            self._rows.append(rows)
        return self._rows[turn]

    def launch(self, engine: "Engine", turn: int, wake: bool) -> Flight:
        """Submits all members, those without a gradient as absent."""
        requests: list[tuple[Any, ...]] = []
        items: list[Item] = []
        with torch.no_grad():
            for slot, param, form, head, tail in self._rows_of(turn):
                grad = param.grad if slot.dirty else None
                slot.dirty = False
                place = slot.place
                if grad is None:
                    free = None if place is None else place.take()
                    wire, context, flags = form.blank() if free is None else free, None, _ABSENT
                elif form.fits(grad):
                    wire, context, flags = grad, None, 0
                else:
                    (wire, context), flags = form.encode(grad), 0
                pointer = wire.data_ptr()
                arena = place.arena if place is not None and pointer == place.address else 0
                requests.append((*head, pointer, pointer, *tail, flags, arena))
                items.append((slot, grad, wire, context))
        return Flight(self, engine.submit_many(requests, wake), items)

    def land(self, item: Item, result: "Result", strict: bool) -> None:
        """Most often nothing is to be done: the gradient was reduced where it is."""
        slot, grad, wire, context = item
        if wire is grad and slot.param.grad is grad and slot.aside is None and slot.sparse_dim is None:
            slot.filled = True
            return
        if result.contributors == 0:
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
        slot.dirty = False
        with torch.no_grad():
            indices, values = rows_of(grad, slot.param, slot.sparse_dim or 1)
        suffix = f"@{turn + 1}" if turn else ""
        backend = backend_of(values)
        items: list[Item] = []
        requests = []
        for part, tensor in (("indices", indices), ("values", values)):
            exported = backend.export(tensor, False)
            name = tensor_name(Kind.ALLGATHER, f"{slot.name}.{part}{suffix}", 0)
            head = (Kind.ALLGATHER, name, exported.dtype, exported.shape, exported.pointer, 0)
            requests.append((*head, 1, 0, self._process_set))
            items.append((slot, grad, exported.owner, part))
        self._indices = None
        return Flight(self, engine.submit_many(requests, wake), items)

    def land(self, item: Item, result: "Result", strict: bool) -> None:
        """The indices land first, then the values, which make the gradient."""
        slot, grad, sent, _ = item
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
