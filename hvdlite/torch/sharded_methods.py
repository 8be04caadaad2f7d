"""What an optimizer with a sharded state (`hvdlite.torch.sharding`) does otherwise than one with a whole state."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.torch.sharded_checkpoint import described, entries_of, merged, require_slices, template
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

    def sharded_state_dict(self, reader: Any = None, under: str = "optimizer") -> dict[str, Any]:
        """This rank's part of the state, for ``torch.distributed.checkpoint``, which all ranks call. Local.

        Args:
            reader: None to save; to load, that of the checkpoint, a ``FileSystemReader(folder)`` say: what is returned is room
                for what this rank is to read of it, whatever the number of ranks that saved it.
            under: the key under which the optimizer is in the dictionary that was saved; "" if it is that dictionary.

        Returns:
            A dictionary for ``save`` or ``load``, and then for `load_sharded_state_dict`.

        Raises:
            InvalidArgumentError: the checkpoint has no such optimizer.
            UnsupportedError: torch is too old.

        """
        require_slices()
        own = list(self._hvdlite.sharded.own_state(self))
        if reader is None:
            state = {sharded.name: described(sharded, kept) for sharded, kept in own if kept is not None}
        else:
            entries = entries_of(reader, under)
            state = {sharded.name: template(sharded, entries) for sharded, _ in own}
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"state": state, "param_groups": groups, "orders": self._hvdlite.sharded.orders()}

    def load_sharded_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `sharded_state_dict` has made room for, and ``torch.distributed.checkpoint.load`` has filled. Local.

        Raises:
            InvalidArgumentError: it is of other groups of parameters, or parameters lie otherwise in memory.

        """
        sharded: ShardedState = self._hvdlite.sharded
        if state_dict["orders"] != sharded.orders() or len(state_dict["param_groups"]) != len(self.param_groups):
            raise InvalidArgumentError(
                "load_sharded_state_dict: the state was saved of parameters that lie otherwise in memory (of a channels-last "
                "model, say), or of other groups: make model and optimizer as they were, or save state_dict()"
            )
        self.state.clear()
        for each, _ in sharded.own_state(self):
            kept = merged(each, state_dict["state"].get(each.name, {}))
            if kept:
                self.state[each.param] = kept
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(saved)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuses to be pickled and copied.

        Raises:
            UnsupportedError: always.

        """
        raise UnsupportedError(
            "an optimizer with shard=True cannot be pickled or copied, since this rank has a part of its state only: save "
            "optimizer.state_dict(), which is collective"
        )
