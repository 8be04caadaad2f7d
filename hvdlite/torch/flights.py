"""Buckets of gradients as requests to the engine, and what becomes of the results.

A bucket is launched once in a pass: its gradients become requests that the engine accepts together. The `Flight` owns the
memory that the engine reads and writes until each result has landed in its parameter's ``.grad``. It is there, and known to the
reducer, before anything is submitted: Ctrl-C may raise between any two lines here, and the memory must not be lost then.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from hvdlite import submission
from hvdlite._engine import Gatherer, PassDriver, Sent, launch
from hvdlite.backends import Exported, backend_of, plain_of
from hvdlite.errors import HvdliteError, InvalidArgumentError, UnsupportedError
from hvdlite.requests import Flag, Kind, Request, tensor_name
from hvdlite.runtime import RUNTIME
from hvdlite.torch.gpu import CPU, StreamsOfBucket, gpu_of
from hvdlite.torch.slots import Slot, WireForm, declared_dtype
from hvdlite.torch.sparse import join_rows, rows_of

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Work

__all__ = ["Bucket", "DenseBucket", "Flight", "Item", "SparseBucket", "has_moved"]

# One request: the slot, its gradient (None if this rank has none), the memory sent, and what decoding needs.
Item = tuple[Slot, torch.Tensor | None, torch.Tensor, Any]
Items = Sequence[Item] | Sent


class Flight:
    """The requests of one launched bucket.

    Attributes:
        handles: the engine's work for all items, which keeps the memory too; none before it is launched.
        items: the requests.
        outcomes: of the items, in order, as far as they have been waited for: what the bucket needs of a result, or an error.
        streams: on a GPU, the CUDA streams in whose order the memory is used again; the launching one is the first.
        landed: how many items are done with.

    """

    __slots__ = ("bucket", "handles", "items", "landed", "outcomes", "streams")

    def __init__(self, bucket: "Bucket", items: Items, streams: Sequence[int] = ()) -> None:
        self.bucket = bucket
        self.handles: list[Work] = []
        self.items = items
        self.streams = streams
        self.outcomes: list[Any] = []
        self.landed = 0

    def land(self, strict: bool) -> HvdliteError | None:
        """Puts all results where they belong. Called without gradient recording, after `Bucket.wait`.

        Args:
            strict: must ``param.grad`` still be the tensor that was sent? If not strict, the result is dropped where the
                user has replaced it.

        Returns:
            The first error of all items, or None.

        """
        failure: HvdliteError | None = None
        land = self.bucket.land
        # Most gradients of a dense bucket were reduced where they are, and are there.
        items = self.items
        places = (
            items.to_land(self.landed, self.outcomes) if isinstance(items, Sent) else range(self.landed, len(self.outcomes))
        )
        for place in places:
            item, outcome = items[place], self.outcomes[place]
            slot, value = item[0], None
            try:
                if isinstance(outcome, HvdliteError):
                    raise outcome
                value = land(item, outcome, strict)
            except HvdliteError as error:
                failure = failure or error
                if not slot.dirty:
                    slot.merge()
            except Exception:  # of a user's compression: it would be raised again, and nothing behind it would ever land
                self.landed = place + 1
                raise
            # What comes before may be done twice. Here Python looks for no signal; a merge that Ctrl-C prevents settle() makes.
            self.landed = place + 1
            if value is not None:
                slot.aside, slot.param.grad = slot.param.grad, value
                slot.merge()
        return failure


class Bucket(Protocol):
    """Gradients that are launched together.

    Attributes:
        slots: the members, in the order that all ranks have.
        device: where the gradients are: the engine's number of a GPU, or of host memory.

    """

    slots: list[Slot]
    device: int

    def see_stream(self) -> None:
        """On a GPU: a gradient of this pass has been made in the current stream."""

    def launch(
        self,
        engine: "Engine",
        reducer: PassDriver,
        number: int,
        turn: int,
        wake: bool,
        weight: float | None,
        begin: Callable[[Flight], None],
    ) -> None:
        """Submits the gradients, in a flight that `begin` is given first.

        Args:
            engine: that is to reduce them.
            reducer: is told that the bucket is launched.
            number: of the bucket in the reducer's plan.
            turn: counts the passes of one step, whose names differ.
            wake: is this within a pass? Then nobody waits for the engine soon.
            weight: of this rank's gradients in a weighted mean; None: all ranks' count alike.
            begin: remembers the flight.
        """

    def wait(self, engine: "Engine", flight: Flight) -> None:
        """Waits for all that the flight still waits for. If a signal interrupts it, it can be called again."""

    def land(self, item: Item, outcome: Any, strict: bool) -> torch.Tensor | None:
        """Puts one result where it belongs; see `Flight.land`. If Ctrl-C interrupts it, it is called again.

        Returns:
            A result that this rank had no part in, which is still to be added to what is finished.
        """

    def close(self, engine: "Engine") -> None:
        """The plan is given up; what is in flight may still land."""


def has_moved(bucket: Bucket) -> bool:
    """Is the first parameter on another device, or are its gradients of another dtype, than when the bucket was made?"""
    slot = bucket.slots[0]
    return gpu_of(slot.param) != bucket.device or declared_dtype(slot.param) not in (slot.dtype, None)


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
        self.slots: list[Slot] = [slot for slot, _ in members]
        self.device = members[0][1].device
        self._streams = StreamsOfBucket(self.device)
        self._label = label
        self.members = members
        self._forms = dict(members)
        self._op = op
        self._process_set = process_set
        self._prescale = prescale
        self._postscale = postscale
        plain = plain_of(members[0][0].param.detach()) if self.device == CPU else None
        forms = [form for _, form in members]
        self._gatherer = Gatherer(self.slots, forms, torch.Tensor, plain, torch.strided, _wire_of)
        self._groups: tuple[list[int], list[int]] = [], []  # prepared, one for each of the passes of a step; weighted ones

    def _prepare(self, engine: "Engine", turn: int, weighted: bool) -> int:
        groups = self._groups[weighted]
        while len(groups) <= turn:
            suffix = f"@{len(groups) + 1}" if groups else ""
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
                    group_size=len(self.members),
                    group_index=index,
                    device=form.device,
                    flags=form.flags | Flag.WEIGHTED if weighted else form.flags,
                    arena=0 if slot.place is None else slot.place.arena,
                )
                for index, (slot, form) in enumerate(self.members)
            ]
            groups.append(engine.prepare(requests))
        return groups[turn]

    def see_stream(self) -> None:
        """See `Bucket.see_stream`."""
        self._streams.see()

    def launch(
        self,
        engine: "Engine",
        reducer: PassDriver,
        number: int,
        turn: int,
        wake: bool,
        weight: float | None,
        begin: Callable[[Flight], None],
    ) -> None:
        """Submits all members, those without a gradient as absent."""
        streams = () if self.device == CPU else self._streams.gather(wake)
        weighted = weight is not None
        groups = self._groups[weighted]
        group = groups[turn] if turn < len(groups) else self._prepare(engine, turn, weighted)
        sent = self._gatherer.gather()
        flight = Flight(self, sent, streams)
        begin(flight)
        launch(engine, reducer, number, group, sent, wake, streams, weight or 0.0, flight.handles)

    def wait(self, engine: "Engine", flight: Flight) -> None:
        """Once for all members."""
        if flight.handles and not flight.outcomes:
            streams: Sequence[int] = ()
            if self.device != CPU:
                streams = self._streams.after(flight.streams)
                if streams[0] != flight.streams[0]:
                    _use_in_current_stream(flight.items)
            engine.wait_many(flight.handles, flight.outcomes, streams)

    def land(self, item: Item, outcome: Any, strict: bool) -> torch.Tensor | None:
        """The outcome: how many ranks had a gradient, at least one."""
        slot, grad, wire, context = item
        slot.filled = True
        form = self._forms[slot]
        if grad is None:
            return slot.receive(form.decode(wire, form.context_of_blank()))
        if _is_there(slot, grad, strict):
            if slot.sparse_dim is not None:
                slot.replace(grad, form.decode(wire, context).to_sparse(slot.sparse_dim))
            elif wire is not grad:
                value = form.decode(wire, context)
                if grad.layout is torch.strided and grad.dtype is value.dtype:
                    grad.copy_(value)
                else:
                    slot.replace(grad, value)
            if slot.aside is not None and not slot.dirty:
                slot.merge()
        return None

    def close(self, engine: "Engine") -> None:
        """The engine may forget the groups."""
        for groups in self._groups:
            for group in groups:
                engine.release_prepared(group)
            groups.clear()


def _wire_of(slot: Slot, form: WireForm, grad: torch.Tensor | None) -> tuple[torch.Tensor, Any]:
    """Memory to send for a gradient that cannot be reduced where it is, or for none; and what decoding needs."""
    if grad is None:
        free = None if slot.place is None else slot.place.take()
        return (form.blank() if free is None else free), None
    slot.require_dtype(grad)
    with torch.no_grad():
        return form.encode(grad)


def _use_in_current_stream(items: Items) -> None:
    """Memory that was made for the launching stream is about to be used in the current one."""
    for _, grad, wire, _ in items:
        if wire is not grad:
            backend_of(wire).use_in_current_stream(wire)


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
        self.slots: list[Slot] = [slot]
        self.device = gpu_of(slot.param)
        self._streams = StreamsOfBucket(self.device)
        self._divisor = divisor
        self._process_set = process_set
        self._indices: torch.Tensor | None = None  # landed before the values

    def see_stream(self) -> None:
        """See `Bucket.see_stream`."""
        self._streams.see()

    def launch(
        self,
        engine: "Engine",
        reducer: PassDriver,
        number: int,
        turn: int,
        wake: bool,
        weight: float | None,
        begin: Callable[[Flight], None],
    ) -> None:
        """Submits the indices and the values of this rank's rows, of which there may be none."""
        slot = self.slots[0]
        if weight is not None:
            raise UnsupportedError(
                f"the gradient of parameter {slot.name!r} is sparse, and optimizer.weight is {weight}: only dense gradients "
                "have a weighted mean; pass sparse_as_dense=True to DistributedOptimizer, or leave the weight out"
            )
        streams = () if self.device == CPU else self._streams.gather(wake)
        grad = slot.param.grad if slot.dirty else None
        if slot.dirty and grad is None:
            slot.forget()  # somebody has reset it
        if grad is not None:
            slot.require_dtype(grad)
        with torch.no_grad():
            indices, values = rows_of(grad, slot.param, slot.dtype, slot.sparse_dim or 1)
        suffix = f"@{turn + 1}" if turn else ""
        backend = backend_of(values)
        items: list[Item] = []
        requests = []
        for part, tensor in (("indices", indices), ("values", values)):
            exported = backend.export(tensor, False)
            requests.append(
                Request(
                    Kind.ALLGATHER,
                    tensor_name(Kind.ALLGATHER, f"{slot.name}.{part}{suffix}"),
                    exported.dtype,
                    exported.shape,
                    exported.pointer,
                    process_set=self._process_set,
                    device=exported.device,
                    stream=exported.stream,
                )
            )
            items.append((slot, grad, exported.owner, exported))
        self._indices = None
        flight = Flight(self, items, streams)
        begin(flight)
        work = engine.submit((), items)  # of nothing yet: the flight has it before anything is submitted
        flight.handles.append(work)
        try:
            engine.submit(requests, None, wake, work)
        finally:
            if work.number:
                slot.dirty = False
                reducer.launched(number)

    def wait(self, engine: "Engine", flight: Flight) -> None:
        """Each result has memory of its own. A flight that Ctrl-C ended before it had its work has no outcomes."""
        if flight.handles and not flight.outcomes:
            streams = () if self.device == CPU else self._streams.after(flight.streams)
            (work,) = flight.handles
            work.wait(streams=streams)
            flight.outcomes = work.results()

    def land(self, item: Item, outcome: Any, strict: bool) -> torch.Tensor | None:
        """The indices land first, then the values, which make the gradient. The outcome: the engine's result."""
        slot, grad, sent, context = item
        exported: Exported = context
        rows = submission.output_of(backend_of(sent), exported, RUNTIME.require(), outcome)
        if self._indices is None or not (rows.is_floating_point() or rows.is_complex()):
            self._indices = rows
            return None
        if grad is None:
            if not len(rows):
                return None
            slot.filled = True
            return slot.receive(join_rows(self._indices, rows, slot.param, self._divisor))
        if _is_there(slot, grad, strict):
            slot.filled = True
            slot.replace(grad, join_rows(self._indices, rows, slot.param, self._divisor))
            if slot.aside is not None and not slot.dirty:
                slot.merge()
        return None

    def close(self, engine: "Engine") -> None:
        """Nothing was prepared."""
