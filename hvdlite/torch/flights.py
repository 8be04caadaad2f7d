"""Buckets of gradients as requests to the engine, and what becomes of the results.

A bucket is launched once in a pass: its gradients become requests that the engine accepts together. Each request in flight
is a `Flight`; it owns the memory that the engine reads and writes, and lands by putting the result into ``param.grad``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hvdlite.backends import backend_of
from hvdlite.errors import InternalError, InvalidArgumentError
from hvdlite.requests import Kind, tensor_name
from hvdlite.torch.slots import Slot, WireForm
from hvdlite.torch.sparse import join_rows, rows_of

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Result

__all__ = ["Bucket", "DenseBucket", "Flight", "SparseBucket"]

_ABSENT = 1  # HVDLITE_FLAG_ABSENT: this rank has no value but takes the result
_CPU = -1


class Flight(Protocol):
    """One request that the engine has and that has not been waited for."""

    handle: int
    slot: Slot

    def land(self, result: "Result", strict: bool) -> None:
        """Puts the result where it belongs.

        Args:
            result: of the operation, which has ended.
            strict: must ``param.grad`` still be the tensor that was sent? If not strict, the result is dropped where the
                user has replaced it.
        """


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

    def launch(self, engine: "Engine", turn: int, wake: bool) -> Sequence[Flight]:
        """Submits the gradients; `turn` counts the passes of one step, whose names differ."""


class _DenseFlight:
    __slots__ = ("context", "grad", "handle", "slot", "wire")

    def __init__(self, slot: Slot, grad: torch.Tensor | None, wire: torch.Tensor, context: Any) -> None:
        self.slot = slot
        self.grad = grad
        self.wire = wire
        self.context = context
        self.handle = 0

    def land(self, result: "Result", strict: bool) -> None:
        if result.contributors == 0:
            return  # used on no rank: as in one process, there is no gradient
        slot, grad, wire = self.slot, self.grad, self.wire
        slot.filled = True
        if grad is None:
            form = _form_of(slot)
            slot.deliver(form.decode(wire, form.context_of_blank()))
        elif _is_there(slot, grad, strict):
            if slot.sparse_dim is not None:
                slot.replace(grad, _form_of(slot).decode(wire, self.context).to_sparse(slot.sparse_dim))
            elif wire is not grad:
                value = _form_of(slot).decode(wire, self.context)
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


def _form_of(slot: Slot) -> WireForm:
    if slot.form is None:
        raise InternalError(f"parameter {slot.name!r} was sent before it was planned; this is a bug of hvdlite")
    return slot.form


class DenseBucket:
    """Gradients of one dtype that the engine fuses, always in the same layout."""

    def __init__(self, label: str, slots: Sequence[Slot], op: int, process_set: int, predivide: float) -> None:
        self.slots = slots
        self.missing = len(slots)
        self.launched = 0
        self._label = label
        self._tail = (op, 0, process_set, 1.0 / predivide, predivide)
        self._names: list[tuple[str, list[str]]] = []

    def _names_of(self, turn: int) -> tuple[str, list[str]]:
        """The group's label and the members' names in one of the passes of a step."""
        while len(self._names) <= turn:
            suffix = f"@{len(self._names) + 1}" if self._names else ""
            names = [tensor_name(Kind.ALLREDUCE, slot.name + suffix, 0) for slot in self.slots]
            self._names.append((self._label + suffix, names))
        return self._names[turn]

    def launch(self, engine: "Engine", turn: int, wake: bool) -> Sequence[Flight]:
        """Submits all members, those without a gradient as absent."""
        label, names = self._names_of(turn)
        count = len(self.slots)
        requests: list[tuple[Any, ...]] = []
        flights: list[_DenseFlight] = []
        with torch.no_grad():
            for index, slot in enumerate(self.slots):
                form = _form_of(slot)
                grad = slot.param.grad if slot.dirty else None
                slot.dirty = False
                wire, context = (form.blank(), None) if grad is None else form.encode(grad)
                pointer = wire.data_ptr()
                flags = _ABSENT if grad is None else 0
                head = (Kind.ALLREDUCE, names[index], form.dtype, form.shape, pointer, pointer)
                requests.append((*head, *self._tail, label, count, index, (), _CPU, 0, flags))
                flights.append(_DenseFlight(slot, grad, wire, context))
        for flight, handle in zip(flights, engine.submit_many(requests, wake), strict=True):
            flight.handle = handle
        return flights


class _SparseFlight:
    """The rows of a sparse gradient: one of these carries their indices, the next one their values."""

    __slots__ = ("average", "grad", "handle", "indices", "slot", "wire")

    def __init__(self, slot: Slot, grad: torch.Tensor | None, wire: torch.Tensor, average: bool) -> None:
        self.slot = slot
        self.grad = grad
        self.wire = wire
        self.average = average
        self.handle = 0
        self.indices: _SparseFlight | None = None  # set for the values

    def land(self, result: "Result", strict: bool) -> None:
        shape = result.shape
        data = memoryview(b"") if 0 in shape else result.take_data()
        self.wire = backend_of(self.wire).wrap(data, shape, self.wire)
        if self.indices is None:
            return
        slot, grad = self.slot, self.grad
        divisor = result.contributors if self.average else 1
        if grad is None:
            if shape[0]:
                slot.filled = True
                slot.deliver(join_rows(self.indices.wire, self.wire, slot.param, divisor))
        elif _is_there(slot, grad, strict):
            slot.filled = True
            slot.replace(grad, join_rows(self.indices.wire, self.wire, slot.param, divisor))
            if slot.aside is not None and not slot.dirty:
                slot.merge()


class SparseBucket:
    """One parameter whose gradient is sparse: every rank gets all ranks' rows and adds them up."""

    def __init__(self, slot: Slot, average: bool, process_set: int) -> None:
        self.slots: Sequence[Slot] = [slot]
        self.missing = 1
        self.launched = 0
        self._average = average
        self._process_set = process_set

    def launch(self, engine: "Engine", turn: int, wake: bool) -> Sequence[Flight]:
        """Submits the indices and the values of this rank's rows, of which there may be none."""
        slot = self.slots[0]
        grad = slot.param.grad if slot.dirty else None
        slot.dirty = False
        with torch.no_grad():
            indices, values = rows_of(grad, slot.param, slot.sparse_dim or 1)
        suffix = f"@{turn + 1}" if turn else ""
        backend = backend_of(values)
        flights, requests = [], []
        for part, tensor in (("indices", indices), ("values", values)):
            exported = backend.export(tensor, False)
            name = tensor_name(Kind.ALLGATHER, f"{slot.name}.{part}{suffix}", 0)
            head = (Kind.ALLGATHER, name, exported.dtype, exported.shape, exported.pointer, 0)
            requests.append((*head, 1, 0, self._process_set))
            flights.append(_SparseFlight(slot, grad, exported.owner, self._average))
        flights[1].indices = flights[0]
        for flight, handle in zip(flights, engine.submit_many(requests, wake), strict=True):
            flight.handle = handle
        return flights
