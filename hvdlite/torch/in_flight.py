"""Launches buckets of gradients as requests to the engine, and stores the results.

A bucket is launched at most once in a pass (usually a backward pass; see `hvdlite.torch.reducer`). At the launch its gradients
become requests, which the engine accepts together. The `InFlightBucket` owns the memory that the engine reads and writes, until
each result is stored in its parameter's ``.grad``. The reducer knows the `InFlightBucket` before anything is submitted, because
Ctrl-C may raise between any two lines of this file, and the memory must stay alive.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from hvdlite import submission
from hvdlite._engine import Gatherer, PassDriver, Sent, launch
from hvdlite.backends import backend_of, plain_of
from hvdlite.errors import HvdliteError, UnsupportedError
from hvdlite.requests import Average, Flag, Kind, Request, tensor_name
from hvdlite.runtime import RUNTIME
from hvdlite.torch.agreement import ReducerSettings
from hvdlite.torch.gpu import CPU, StreamsOfBucket, gpu_of
from hvdlite.torch.parameter_gradient import ParameterGradient, WireForm, declared_dtype, store_dense
from hvdlite.torch.sparse import join_rows, rows_of

if TYPE_CHECKING:
    from hvdlite._engine import Engine, Work
    from hvdlite.torch.reducer import Reducer

# A request's name contains the number of its reduction in the training step, modulo _TURNS. So if one rank makes more
# reductions in a training step than another rank, the ranks get an error, unless both counts are multiples of _TURNS.
_TURNS = 4

# One gradient of an in-flight bucket: the gradient's state, its tensor (None if this rank has no gradient), the memory that is
# sent, and the context for decoding.
Item = tuple[ParameterGradient, torch.Tensor | None, torch.Tensor, Any]
Items = Sequence[Item] | Sent
# The members of a bucket, and their forms on the wire.
Members = Sequence[tuple[ParameterGradient, WireForm]]


class InFlightBucket:
    """The requests of one launched bucket.

    Attributes:
        bucket: the bucket that was launched.
        works: the engine's work for all items, which also keeps the memory alive; for a `CodedBucket` a handle for each round.
            Before the submission the list is empty, or its only work has the number 0.
        items: one item for each gradient, in the order of the bucket.
        outcomes: empty until all items have ended; then for each item an error, or what the bucket's `store` takes.
        streams: on a GPU, the CUDA streams whose later work may reuse the memory; the first is the stream that was current at
            the launch.
        stored: the number of items that are done (stored, dropped or failed). They are the first ones of `items`.

    """

    __slots__ = ("__weakref__", "bucket", "items", "outcomes", "stored", "streams", "works")

    def __init__(self, bucket: "Bucket", items: Items, streams: Sequence[int] = ()) -> None:
        self.bucket = bucket
        self.works: list[Work] = []
        self.items = items
        self.streams = streams
        self.outcomes: list[Any] = []
        self.stored = 0

    def store(self, strict: bool) -> HvdliteError | None:
        """Stores all results in their gradients. Call it after `Bucket.wait`, inside of ``torch.no_grad()``.

        Args:
            strict: is it an error if the user has replaced the ``param.grad`` that was sent? If False, the result of such a
                gradient is dropped.

        Returns:
            The first error of all items, or None.

        Raises:
            Exception: a compression of the user has raised it. Call this method again to store the items after the failed one.

        """
        failure: HvdliteError | None = None
        store = self.bucket.store
        # Most gradients of a dense bucket were reduced in place, so their results are stored already.
        items = self.items
        places = (
            items.to_store(self.stored, self.outcomes) if isinstance(items, Sent) else range(self.stored, len(self.outcomes))
        )
        for place in places:
            item, outcome = items[place], self.outcomes[place]
            gradient, value = item[0], None
            try:
                if isinstance(outcome, HvdliteError):
                    raise outcome
                value = store(item, outcome, strict)
            except HvdliteError as error:
                failure = failure or error
                if not gradient.dirty:
                    gradient.merge()
            except Exception:  # raised by a user's compression; the next call goes on with the next item
                self.stored = place + 1
                raise
            # If Ctrl-C interrupts the try statement, the next call stores this item again. Ctrl-C cannot come between the try
            # statement and the next line. If Ctrl-C prevents `merge`, the reducer's settle() calls `merge`.
            self.stored = place + 1
            if value is not None:
                gradient.reduced_part, gradient.param.grad = gradient.param.grad, value
                gradient.merge()
        return failure


class Bucket(ABC):
    """Gradients that are launched together.

    Attributes:
        gradients: the members, in the order that all ranks have.
        device: the device of the gradients: the engine's number of a GPU or of host memory.

    """

    def __init__(self, gradients: list[ParameterGradient]) -> None:
        self.gradients = gradients
        self.device = gpu_of(gradients[0].param)
        self._streams = StreamsOfBucket(self.device)

    def see_stream(self) -> None:
        """Called for a bucket on a GPU when one of its gradients was made in the current stream."""
        self._streams.see()

    @abstractmethod
    def launch(self, engine: "Engine", reducer: "Reducer", number: int, wake: bool) -> None:
        """Makes an in-flight bucket, appends it to the reducer's `in_flight`, and submits the gradients.

        Args:
            engine: the engine that reduces the gradients.
            reducer: the reducer, which counts the bucket as launched.
            number: the number of the bucket in the reducer's plan (its list of buckets).
            wake: wake the engine's thread? Within a backward pass yes. After it no, because the caller waits next, and a caller
                that waits does the work of the engine's thread.

        Raises:
            InvalidArgumentError, UnsupportedError: the gradient that the text names cannot be reduced in this way.
        """

    @abstractmethod
    def wait(self, engine: "Engine", launched: InFlightBucket) -> None:
        """Waits for all results that are still missing. If a signal handler raises meanwhile, call this method again."""

    @abstractmethod
    def store(self, item: Item, outcome: Any, strict: bool) -> torch.Tensor | None:
        """Stores one result; see `InFlightBucket.store`. If Ctrl-C interrupts this method, it is called again.

        Returns:
            The result, if this rank did not contribute to it: the caller adds it to ``param.grad``. Otherwise None.
        """

    def close(self, engine: "Engine") -> None:  # noqa: B027 - most buckets have prepared nothing
        """Called when the plan is dropped. The results of buckets that are in flight can still be stored afterwards."""


def turn_of(reducer: PassDriver) -> int:
    """The number of the reduction in its training step, modulo _TURNS. It makes the names of successive reductions differ."""
    return reducer.turn % _TURNS


def suffix_of_pass(turn: int) -> str:
    """The last part of the requests' names in a reduction. turn: see `turn_of`."""
    return f"@{turn + 1}" if turn else ""


def has_moved(bucket: Bucket) -> bool:
    """Has the device of the first parameter, or the dtype of its gradient, changed since the bucket was made?"""
    gradient = bucket.gradients[0]
    return gpu_of(gradient.param) != bucket.device or declared_dtype(gradient.param) not in (gradient.dtype, None)


class DenseBucket(Bucket):
    """Gradients of one dtype, which the engine fuses always in the same layout. They are submitted as prepared groups."""

    def __init__(self, label: str, members: Members, settings: ReducerSettings) -> None:
        super().__init__([gradient for gradient, _ in members])
        self._label = label
        self.members = members
        self._forms = dict(members)
        self._settings = settings
        plain = plain_of(members[0][0].param.detach()) if self.device == CPU else None
        forms = [form for _, form in members]
        self._gatherer = Gatherer(self.gradients, forms, torch.Tensor, plain, torch.strided, _wire_of)
        # The ids of the prepared groups. The first list is for reductions without weights, the second for reductions with
        # weights. Each list has one id for each turn (see `turn_of`).
        self._groups: tuple[list[int], list[int]] = [], []

    def _prepare(self, engine: "Engine", turn: int, weighted: bool) -> int:
        groups, settings = self._groups[weighted], self._settings
        prescale, postscale = settings.scales
        while len(groups) <= turn:
            suffix = suffix_of_pass(len(groups))
            requests = [
                Request(
                    Kind.ALLREDUCE,
                    tensor_name(Kind.ALLREDUCE, gradient.name + suffix),
                    form.dtype,
                    form.shape,
                    # The engine compares the address of each gradient with this place in the arena.
                    output_ptr=0 if gradient.place is None else gradient.place.address,
                    op=settings.op,
                    process_set=settings.process_set.require_member(Kind.ALLREDUCE),
                    prescale=prescale,
                    postscale=postscale,
                    group=self._label + suffix,
                    group_size=len(self.members),
                    group_index=index,
                    device=form.device,
                    flags=form.flags | Flag.WEIGHTED if weighted else form.flags,
                    arena=0 if gradient.place is None else gradient.place.arena,
                    **form.codec,
                )
                for index, (gradient, form) in enumerate(self.members)
            ]
            groups.append(engine.prepare(requests))
        return groups[turn]

    def launch(self, engine: "Engine", reducer: "Reducer", number: int, wake: bool) -> None:
        """Submits all members. This rank is absent for members without a gradient."""
        streams = () if self.device == CPU else self._streams.gather()
        turn, weight = turn_of(reducer), reducer.weight
        weighted = weight is not None
        groups = self._groups[weighted]
        group = groups[turn] if turn < len(groups) else self._prepare(engine, turn, weighted)
        sent = self._gatherer.gather()
        launched = InFlightBucket(self, sent, streams)
        reducer.in_flight.append(launched)
        launch(engine, reducer, number, group, sent, wake, streams, weight or 0.0, reducer.notice, launched.works)

    def wait(self, engine: "Engine", launched: InFlightBucket) -> None:
        """Waits for all members together."""
        if launched.works and not launched.outcomes:
            streams: Sequence[int] = ()
            if self.device != CPU:
                streams = self._streams.after(launched.streams)
                if streams[0] != launched.streams[0]:  # then memory from the launching stream is used in the current stream
                    for _, grad, wire, _ in launched.items:
                        if wire is not grad:
                            backend_of(wire).use_in_current_stream(wire)
            engine.wait_many(launched.works, launched.outcomes, streams)

    def store(self, item: Item, outcome: Any, strict: bool) -> torch.Tensor | None:
        """The outcome is the number of ranks that had a gradient, at least one."""
        gradient, grad, wire, context = item
        return store_dense(gradient, grad, self._forms[gradient], wire, context, strict)

    def close(self, engine: "Engine") -> None:
        """Lets the engine forget the prepared groups."""
        for groups in self._groups:
            for group in groups:
                engine.release_prepared(group)
            groups.clear()


def _wire_of(gradient: ParameterGradient, form: WireForm, grad: torch.Tensor | None) -> tuple[torch.Tensor, Any]:
    """Memory to send for a gradient that cannot be reduced in place, or for a missing one; and the context for decoding."""
    if grad is None:
        free = None if gradient.place is None else gradient.place.take()
        return (form.blank() if free is None else free), None
    gradient.require_dtype(grad)
    with torch.no_grad():
        return form.encode(grad)


class SparseBucket(Bucket):
    """One parameter whose gradient is sparse: every rank gets all ranks' rows, adds them up, and divides the sum."""

    def __init__(self, gradient: ParameterGradient, settings: ReducerSettings) -> None:
        super().__init__([gradient])
        ranks = (settings.process_set.size() or 1) if settings.op == Average else 1
        self._divisor = ranks * settings.divisor
        self._process_set = settings.process_set

    def launch(self, engine: "Engine", reducer: "Reducer", number: int, wake: bool) -> None:
        """Submits the indices and the values of this rank's rows; there may be no rows."""
        gradient = self.gradients[0]
        if reducer.weight is not None:
            raise UnsupportedError(
                f"the gradient of parameter {gradient.name!r} is sparse, and optimizer.weight is {reducer.weight}: only dense "
                "gradients have a weighted mean; pass sparse_as_dense=True to DistributedOptimizer, or leave the weight out"
            )
        streams = () if self.device == CPU else self._streams.gather()
        grad = gradient.param.grad if gradient.dirty else None
        if gradient.dirty and grad is None:
            gradient.forget()  # the user has reset it
        if grad is not None:
            gradient.require_dtype(grad)
        with torch.no_grad():
            indices, values = rows_of(grad, gradient.param, gradient.dtype, gradient.sparse_dim or 1)
        suffix = suffix_of_pass(turn_of(reducer))
        backend = backend_of(values)
        exports = [backend.export(indices, False), backend.export(values, False)]
        requests = [
            Request(
                Kind.ALLGATHER,
                tensor_name(Kind.ALLGATHER, f"{gradient.name}.{part}{suffix}"),
                exported.dtype,
                exported.shape,
                exported.pointer,
                process_set=self._process_set.require_member(Kind.ALLGATHER),
                device=exported.device,
                stream=exported.stream,
            )
            for part, exported in zip(("indices", "values"), exports, strict=True)
        ]
        items: list[Item] = [(gradient, grad, values, exports)]
        launched = InFlightBucket(self, items, streams)
        reducer.in_flight.append(launched)
        work = engine.submit((), items)  # a work without operations yet, which the in-flight bucket gets before the submission
        launched.works.append(work)
        try:
            engine.submit(requests, None, wake, work)
        finally:
            if work.number:
                gradient.dirty = False
                reducer.launched(number)

    def wait(self, engine: "Engine", launched: InFlightBucket) -> None:
        """Waits for the indices and the values. If Ctrl-C came before the submission, there is nothing to wait for."""
        if launched.works and not launched.outcomes:
            streams = () if self.device == CPU else self._streams.after(launched.streams)
            (work,) = launched.works
            work.wait(streams=streams)
            results = work.results()
            failures = [result for result in results if isinstance(result, HvdliteError)]
            if results:
                launched.outcomes = failures[:1] or [results]

    def store(self, item: Item, outcome: Any, strict: bool) -> torch.Tensor | None:
        """The outcome is the engine's results for the indices and the values."""
        gradient, grad, values, exports = item
        backend, engine = backend_of(values), RUNTIME.require()
        indices, rows = (
            submission.output_of(backend, exported, engine, result) for exported, result in zip(exports, outcome, strict=True)
        )
        if grad is None and not len(rows):
            return None  # no rank had a gradient
        return gradient.store(grad, join_rows(indices, rows, gradient.param, self._divisor), strict)
