"""Buckets whose gradients are reduced by a codec with state (`hvdlite.compression.BucketCodec`), in one or more rounds.

A round is one fused allreduce.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

import torch

from hvdlite import submission
from hvdlite.compression import BucketCodec
from hvdlite.errors import AbortedError, HvdliteError, InvalidArgumentError
from hvdlite.torch.agreement import ReducerSettings
from hvdlite.torch.in_flight import Bucket, InFlightBucket, Item, Members, suffix_of_pass, turn_of
from hvdlite.torch.parameter_gradient import ParameterGradient, WireForm, store_dense

if TYPE_CHECKING:
    from hvdlite._engine import Engine
    from hvdlite.handles import Handle
    from hvdlite.torch.reducer import Reducer

# The in-flight bucket of each coded bucket's last launch, for all optimizers. The key is `CodedBucket._key`.
_in_flight: WeakValueDictionary[tuple[str, int], InFlightBucket] = WeakValueDictionary()


@dataclass(eq=False)
class CodedGradient:
    """One gradient as a `BucketCodec` sees it.

    Attributes:
        name: the unique name, the same on all ranks.
        shape: the shape of the gradient; a complex gradient has one more dimension of 2 at its end, for pairs of reals.
        dtype: the dtype of the gradient; for a complex gradient, the dtype of its real parts.
        value: this rank's gradient, contiguous and in host memory; None: no gradient. The codec is allowed to overwrite it.
        state: what the codec keeps for this gradient from step to step: numbers and tensors, which ``optimizer.state_dict()``
            saves.
        present: (after the first round) has any rank a gradient? If no rank has one, hvdlite ignores the codec's result, and
            the codec must not change the state.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    value: torch.Tensor | None
    state: dict[str, Any]
    present: bool = True

    def whole(self) -> torch.Tensor:
        """The value, or zeros if this rank has no gradient."""
        return torch.zeros(self.shape, dtype=self.dtype, device="cpu") if self.value is None else self.value

    def with_residual(self, loss_scale: float) -> torch.Tensor | None:
        """The sum of the value and the residual, as a new tensor of float32 or float64; None if this rank has no gradient.

        ``state["residual"]`` holds the residual for a loss scale of 1. So this method multiplies it by `loss_scale`.
        """
        if self.value is None:
            return None
        value = self.value.to(torch.promote_types(self.dtype, torch.float32))
        lost: torch.Tensor | None = self.state.get("residual")
        return value.clone() if lost is None else torch.add(value, lost.reshape(self.shape), alpha=loss_scale)


def are_finite(tensors: Sequence[torch.Tensor]) -> bool:
    """Are all elements of these tensors finite?"""
    return all(
        not tensor.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(tensor))).all())
        for tensor in tensors
        if tensor.is_floating_point()
    )


def scale_of(loss_scale: Any) -> float:
    """The number by which the loss is multiplied now: a ``GradScaler``'s scale, or the number itself; 1.0 for None."""
    if loss_scale is None:
        return 1.0
    return float(loss_scale.get_scale() if hasattr(loss_scale, "get_scale") else loss_scale)


class CodedBucket(Bucket):
    """Dense gradients in host memory that a `BucketCodec` reduces. At most one launch of a bucket has rounds in flight."""

    def __init__(self, label: str, members: Members, codec: BucketCodec, settings: ReducerSettings) -> None:
        super().__init__([gradient for gradient, _ in members])
        self._label = label
        # The key is the same on all ranks. It contains the number of the process set, because buckets of different process sets
        # may have the same label.
        self._key = (label, settings.process_set.process_set_id or 0)
        self._members = members
        self._forms = dict(members)
        self._codec = codec
        self._settings = settings
        self._coded: list[CodedGradient] = []
        # The generator that the codec's `reduce` has returned. None after the generator's end. Also None while the generator
        # computes after a round: if Ctrl-C interrupts the generator, the generator cannot continue, and this stays None.
        self._steps: Generator[Sequence[Any], None, Sequence[Any]] | None = None
        # The tensors of the current round until they are submitted. If Ctrl-C prevents the submission of the second or a later
        # round, the next call of `wait` submits the round.
        self._unsent: Sequence[Any] | None = None
        self._present = torch.empty(0, device="cpu")  # after the first round, the number of ranks that have each gradient
        self._suffix = ""
        self._round = 0
        self._weight: float | None = None
        self._notice = False

    def launch(self, engine: "Engine", reducer: "Reducer", number: int, wake: bool) -> None:
        """Submits the first round, and an allreduce that counts, for each gradient, the ranks that have it.

        See `Bucket.launch`.

        Raises:
            InvalidArgumentError: the codec has no round, or the dtype of a gradient has changed.
        """
        self._suffix = suffix_of_pass(turn_of(reducer))
        self._weight, self._notice = reducer.weight, reducer.notice
        self._round = 0
        items: list[Item] = []
        self._coded = []
        with torch.no_grad():
            for gradient, form in self._members:
                grad = gradient.param.grad if gradient.dirty else None
                if gradient.dirty and grad is None:
                    gradient.forget()  # the user has reset it
                value = None if grad is None else _value_of(gradient, form, grad)
                coded = CodedGradient(gradient.name, tuple(form.shape), form.wire_dtype, value, gradient.coding)
                self._coded.append(coded)
                items.append((gradient, grad, torch.empty(0, device="cpu") if value is None else value, None))
            self._steps = self._codec.reduce(self._coded, scale_of(reducer.loss_scale))
            self._unsent = next(self._steps, None)
            if self._unsent is None:
                raise InvalidArgumentError(f"{self._codec.describe()}.reduce has no round: it must yield tensors at least once")
            self._present = torch.tensor([coded.value is not None for coded in self._coded], dtype=torch.int32, device="cpu")
            launched = InFlightBucket(self, items)
            reducer.in_flight.append(launched)
            _in_flight[self._key] = launched
            dirty = [gradient for gradient in self.gradients if gradient.dirty]
            try:
                for gradient in dirty:
                    gradient.dirty = False
                self._send(launched)
            finally:
                if launched.works and launched.works[0].number:
                    reducer.launched(number)
                else:
                    for gradient in dirty:
                        gradient.dirty = True

    def _send(self, launched: InFlightBucket) -> None:
        """Submits the current round, and together with the first round the allreduce that counts ranks (see `launch`)."""
        assert self._unsent is not None
        settings = self._settings
        scales = (settings.op, *settings.scales)
        name = f"{self._label}.round{self._round}{self._suffix}"
        counts = None if self._round else (f"{self._label}.present{self._suffix}", self._present)
        how = (self._weight, self._codec.codec, self._notice)
        earlier = len(launched.works)
        try:
            submission.start_round(self._unsent, name, scales, settings.process_set, *how, counts, launched.works.append)
        finally:
            if launched.works[earlier:] and launched.works[-1].number:
                self._unsent = None

    def wait(self, engine: "Engine", launched: InFlightBucket) -> None:
        """Waits for all rounds of launched buckets with smaller keys, of any optimizer, and then for the rounds of this bucket.

        All rounds but the first start in this method. If one rank waited for optimizer A first and another rank for optimizer
        B first, neither rank would start the round that the other rank needs. So all ranks wait in the order of the keys.
        """
        for key in sorted(_in_flight):
            other = _in_flight.get(key)
            if key < self._key and other is not None and isinstance(other.bucket, CodedBucket):
                other.bucket._take_rounds(other)
        self._take_rounds(launched)

    def _take_rounds(self, launched: InFlightBucket) -> None:
        # If Ctrl-C has interrupted this launch before it submitted a round, there is nothing to wait for. Such a launch is
        # still in the reducer's `in_flight`, perhaps next to a later launch of the same bucket.
        if launched.outcomes or not launched.works or not launched.works[0].number:
            return
        try:
            launched.outcomes = self._finish(launched)
        except HvdliteError as error:
            launched.outcomes = [error] * len(self._coded)
        except Exception as error:  # from a user's codec; `store` raises it again
            launched.outcomes = [error, *[None] * (len(self._coded) - 1)]

    def _finish(self, launched: InFlightBucket) -> list[Any]:
        while True:
            if self._unsent is not None:
                self._send(launched)
            cast("Handle", launched.works[-1]).synchronize()
            for coded, ranks in zip(self._coded, self._present.tolist(), strict=True):
                coded.present = ranks > 0
            if self._steps is None:
                raise AbortedError(
                    f"Ctrl-C came while gradients of {self._label} were decoded, so this step has no gradients: call "
                    "zero_grad() on all ranks and begin the step again"
                )
            steps, self._steps = self._steps, None
            try:
                tensors = next(steps)
            except StopIteration as end:
                values = list(end.value)
                return [value if coded.present else None for value, coded in zip(values, self._coded, strict=True)]
            # Python runs no signal handler between these assignments.
            self._unsent, self._steps, self._round = tensors, steps, self._round + 1

    def store(self, item: Item, outcome: Any, strict: bool) -> torch.Tensor | None:
        """The outcome is the reduced gradient, None if no rank had one, or the codec's exception, which is raised again."""
        if outcome is None:
            return None
        if isinstance(outcome, Exception):
            raise outcome
        gradient, grad, _, _ = item
        form = self._forms[gradient]
        return store_dense(gradient, grad, form, outcome.reshape(form.shape), None, strict)


def _value_of(gradient: ParameterGradient, form: WireForm, grad: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the form's shape and dtype that the codec may overwrite: the gradient itself if it is such a
    tensor; a view of a complex gradient as pairs of reals, if that is possible; otherwise a copy.
    """
    gradient.require_dtype(grad)
    if form.dtype_in_place is grad.dtype and grad.layout is torch.strided and grad.is_contiguous() and not grad.is_neg():
        return grad
    return form.encode(grad)[0].contiguous()
