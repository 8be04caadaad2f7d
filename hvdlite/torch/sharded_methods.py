"""What an optimizer with a sharded state (`hvdlite.torch.sharding`) does otherwise than one with a whole state."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hvdlite.errors import UnsupportedError
from hvdlite.torch.sharding import ShardedState

if TYPE_CHECKING:
    _Optimizer = torch.optim.Optimizer
else:
    _Optimizer = object  # it is mixed into subclasses of torch.optim.Optimizer

__all__ = ["ShardedMethods", "connect"]


def connect(optimizer: torch.optim.Optimizer, sharded: ShardedState) -> list[Callable[[], None]]:
    """Has the steps of an optimizer taken on this rank's part. Nothing may come between a step and these hooks.

    Args:
        optimizer: of a class that no other object has; the class is changed.
        sharded: its state.

    Returns:
        Functions that take the hooks off.

    """
    before = sharded.last_hook = optimizer.register_step_pre_hook(sharded.before_step)
    after = optimizer.register_step_post_hook(sharded.after_step)
    hooks: Any = optimizer._optimizer_step_post_hooks
    hooks.move_to_end(after.id, last=False)
    kind: Any = type(optimizer)
    step = kind.step

    @functools.wraps(step)
    def restoring(*args: Any, **kwargs: Any) -> Any:
        try:
            return step(*args, **kwargs)
        finally:
            sharded.restore()  # also if it raises

    kind.step = restoring
    return [before.remove, after.remove]


class ShardedMethods(_Optimizer):
    """Methods that stand before those of every wrapped optimizer."""

    _hvdlite: Any

    def register_step_pre_hook(self, hook: Any) -> Any:
        """As in torch: the hook sees whole gradients, as it is called before the parameters are swapped for parts of them."""
        handle = super().register_step_pre_hook(hook)
        sharded, hooks = self._hvdlite.sharded, self._optimizer_step_pre_hooks
        if sharded is not None and sharded.last_hook is not None:  # not so while the optimizer is being wrapped
            hooks.move_to_end(sharded.last_hook.id)  # type: ignore[attr-defined]
        return handle

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The whole state, as of the plain optimizer. Collective over the process set.

        Raises:
            InvalidArgumentError: a state was loaded on some ranks only.

        """
        with self._hvdlite.sharded.whole_state(self):
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a whole state, saved at any number of ranks. From the next step on this rank keeps no more than its part."""
        super().load_state_dict(state_dict)
        self._hvdlite.sharded.unsliced = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled and copied.

        Raises:
            UnsupportedError: always.

        """
        raise UnsupportedError(
            "an optimizer with shard=True cannot be pickled or copied, since this rank has a part of its state only: save "
            "optimizer.state_dict(), which is collective"
        )
