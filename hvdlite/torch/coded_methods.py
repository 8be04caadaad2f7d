"""The methods of an optimizer whose compression keeps state (`hvdlite.compression.BucketCodec`)."""

import logging
import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from hvdlite.compression import BucketCodec, Codec, PowerSGD, check_compression, describe_compression, keeps_state
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.objects import broadcast_object
from hvdlite.runtime import RUNTIME
from hvdlite.torch.coded_bucket import scale_of
from hvdlite.torch.error_feedback import ErrorFeedback
from hvdlite.torch.power_sgd import PowerSGDCodec

if TYPE_CHECKING:
    _Optimizer = torch.optim.Optimizer
else:
    _Optimizer = object  # the class below is mixed into subclasses of torch.optim.Optimizer

KEY = "hvdlite_compression"  # the key of the compression's state in a state dict
_STEP_OF_SCALER = torch.cuda.amp.GradScaler.step.__code__  # torch.amp.GradScaler.step has the same code
_OWN = "residual"  # the key of the part of a gradient's state that differs between ranks


def bucket_codec_of(compression: Any) -> BucketCodec | None:
    """The codec with state for this compression argument; None if the compression keeps no state."""
    if isinstance(compression, PowerSGD):
        return PowerSGDCodec(compression)
    if isinstance(compression, Codec):
        return ErrorFeedback(compression) if compression.error_feedback else None
    return compression if isinstance(compression, BucketCodec) else None


def check_compression_and_groups(compression: Any, groups: Any) -> None:
    """Checks a compression argument of `DistributedOptimizer` together with `groups`.

    Raises:
        InvalidArgumentError: the argument is not a compression; or the compression needs one bucket, but groups are given.
        UnsupportedError: the compression is a codec between hosts with error feedback, and this rank shares its host with
            other ranks.
    """
    if not keeps_state(compression):
        check_compression(compression)
        return
    text = describe_compression(compression)
    codec = bucket_codec_of(compression)
    if codec is not None and codec.one_bucket and groups is not None:
        raise InvalidArgumentError(f"{text} reduces all gradients in one bucket, so it cannot have groups: leave groups out")
    if isinstance(compression, Codec) and compression.between == "hosts" and RUNTIME.require_topology().local_size > 1:
        raise UnsupportedError(
            f'compression is {text}: with between="hosts" the engine codes the sum of the ranks of a host, and no rank knows '
            'what that sum loses. Pass between="ranks", run one rank on each host, or leave error_feedback out'
        )


def codings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The state that the compression keeps for each parameter (no copies), in the order of the optimizer's parameter groups.

    The list is empty if the optimizer's compression keeps no state.
    """
    if not isinstance(optimizer, CodedMethods):
        return []
    params = [param for group in optimizer.param_groups for param in group["params"]]
    reducers = optimizer._hvdlite.reducers()
    return [next((reducer.coding_of(param) for reducer in reducers if reducer.holds(param)), {}) for param in params]


def compression_of(optimizer: torch.optim.Optimizer) -> str:
    """The description of an optimizer's compression with state; "none" if its compression keeps no state."""
    return describe_compression(optimizer._hvdlite.settings.compression) if isinstance(optimizer, CodedMethods) else "none"


def load_coding(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any] | None) -> None:
    """Loads the state that `CodedMethods.state_dict` has saved, if the optimizer's compression keeps state.

    A residual is loaded only if the same rank of a process set of the same size saved it; any other residual is dropped.

    Args:
        optimizer: an optimizer, wrapped or not.
        saved: the value under `KEY` in a state dict. It must be of the same compression: the caller checks this. None: the
            state dict has no such key, and the compression starts without state.
    """
    if not isinstance(optimizer, CodedMethods):
        return
    settings = optimizer._hvdlite.settings
    codings = codings_of(optimizer)
    place = [settings.process_set.rank(), settings.process_set.size()]
    is_own = saved is not None and saved["place"] == place
    states = saved["state"] if saved is not None else {}
    for number, coding in enumerate(codings):
        coding.clear()
        for key, value in states.get(number, {}).items():
            if is_own or key != _OWN:
                coding[key] = value.clone() if isinstance(value, torch.Tensor) else value
    if saved is not None and not is_own:
        logging.getLogger("hvdlite").info(
            "compression %s: rank %s of %s starts without a residual, because rank %s of %s saved the loaded state",
            describe_compression(settings.compression),
            *place,
            *saved["place"],
        )


# The optimizers whose compression keeps state, by process set. A process set stays in this dict after its optimizers were
# deleted: this rank must still take part in the broadcast of `_share`, because other ranks may have kept their optimizers.
_optimizers: dict[Any, weakref.WeakSet[Any]] = {}


def share_after_joins(optimizer: "CodedMethods") -> None:
    """Makes hvdlite call `_share` whenever all ranks of the optimizer's process set have joined."""
    _optimizers.setdefault(optimizer._hvdlite.settings.process_set, weakref.WeakSet()).add(optimizer)
    if _share not in RUNTIME.after_join:
        RUNTIME.after_join.append(_share)


def _share(process_set: Any, last: int) -> None:
    """Copies the compressions' state, but no residuals, from the rank that joined last to all ranks of the set.

    Collective if the set ever had an optimizer whose compression keeps state; otherwise the function does nothing.
    """
    here = [(its_set, found) for its_set, found in _optimizers.items() if its_set.process_set_id == process_set.process_set_id]
    if not here:
        return
    # An optimizer that was wrapped again for another set is still listed under its earlier set, where it must not count.
    living = {
        each._hvdlite.settings.prefix: codings_of(each)
        for its_set, found in here
        for each in found
        if isinstance(each, CodedMethods) and each._hvdlite.settings.process_set is its_set
    }
    common = {
        prefix: [{key: value for key, value in coding.items() if key != _OWN} for coding in codings]
        for prefix, codings in living.items()
    }
    common = broadcast_object(common, last, name="hvdlite.join.compression", process_set=process_set)
    for prefix, codings in living.items():
        for coding, theirs in zip(codings, common.get(prefix, codings), strict=True):
            coding.update(theirs)


class CodedMethods(_Optimizer):
    """Methods of an optimizer whose compression keeps state. Some override methods that every wrapped optimizer has."""

    _hvdlite: Any

    @property
    def loss_scale(self) -> Any:
        """The factor by which the program multiplies the loss: a ``GradScaler``, a number, or None for 1.

        Set this attribute before the first ``backward()``. If it is a number, set it again whenever the factor changes, before
        the next ``backward()``. hvdlite reduces gradients that still contain the factor, and adds the error of one gradient to
        a later gradient, whose factor may differ. So hvdlite must know the factors. If hvdlite reduces no gradients (as with a
        single rank), the attribute stays None.

        Raises:
            InvalidArgumentError: it is set to something else, or to a number that is 0, negative or not finite.
        """
        reducer = self._hvdlite.reducer
        return None if reducer is None else reducer.loss_scale

    @loss_scale.setter
    def loss_scale(self, loss_scale: Any) -> None:
        """Sets the factor for the next ``backward()`` and later ones."""
        if isinstance(loss_scale, int | float):
            right = 0 < loss_scale <= sys.float_info.max  # an int may be larger than any float
        else:
            right = loss_scale is None or (hasattr(loss_scale, "get_scale") and 0 < scale_of(loss_scale) < float("inf"))
        if not right:
            raise InvalidArgumentError(
                f"optimizer.loss_scale={loss_scale!r}: set it to the GradScaler, to a finite number above 0, or to None"
            )
        for reducer in self._hvdlite.reducers():
            reducer.loss_scale = loss_scale

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The optimizer's state as without compression, and under ``hvdlite_compression`` this rank's state of the compression.

        Plain optimizers ignore that key. As in torch, the tensors are not copied. Collective if the optimizer is sharded.
        """
        settings = self._hvdlite.settings
        state = super().state_dict(*args, **kwargs)
        state[KEY] = {
            "compression": describe_compression(settings.compression),
            "place": [settings.process_set.rank(), settings.process_set.size()],
            "state": {number: dict(coding) for number, coding in enumerate(codings_of(self)) if coding},
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads the plain optimizer's state and the state of the compression.

        A residual is loaded only on the rank that saved it, and only if the process set has the same size. So let each rank
        save and load a file of its own. Without the key ``hvdlite_compression`` the compression starts without state.

        Raises:
            InvalidArgumentError: the saved state belongs to another compression. In this case nothing is loaded.
        """
        saved, text = state_dict.get(KEY), compression_of(self)
        if saved is not None and saved["compression"] != text:
            raise InvalidArgumentError(
                f"the state of an optimizer with compression {saved['compression']} does not fit one with {text}: remove the "
                f"key {KEY!r} from the state dict, and the compression starts without state"
            )
        self._hvdlite.settle()
        super().load_state_dict(state_dict)
        load_coding(self, saved)

    def sharded_state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Raises an error: a sharded state dict has no place for the compression's state.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            f"sharded_state_dict cannot save the state of compression "
            f"{describe_compression(self._hvdlite.settings.compression)}: save optimizer.state_dict()"
        )


def refuse_unknown_scale(optimizer: Any, *_: Any) -> None:
    """A hook before every step: if ``loss_scale`` is not set, it refuses steps that an enabled ``GradScaler`` takes.

    Raises:
        UnsupportedError: an enabled ``GradScaler`` takes this step, and ``loss_scale`` is None.
    """
    if optimizer._hvdlite.reducer is None or optimizer.loss_scale is not None:
        return
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _STEP_OF_SCALER and frame.f_locals["self"].is_enabled():
            raise UnsupportedError(
                f"a GradScaler scales the loss, and compression "
                f"{describe_compression(optimizer._hvdlite.settings.compression)} adds the errors of gradients to later ones, "
                "whose scale may differ: set optimizer.loss_scale = scaler before the first backward()"
            )
        frame = frame.f_back  # type: ignore[assignment]
