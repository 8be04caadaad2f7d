"""The methods of an optimizer with a sharded state (`hvdlite.torch.sharding`)."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.torch.sharded_checkpoint import described, entries_of, merged, require_slices, template
from hvdlite.torch.sharding import ShardedState
from hvdlite.torch.steps import wrap_step

if TYPE_CHECKING:
    _Optimizer = torch.optim.Optimizer
else:
    _Optimizer = object  # the class below is mixed into subclasses of torch.optim.Optimizer


def connect(optimizer: torch.optim.Optimizer, sharded: ShardedState) -> list[Callable[[], None]]:
    """Makes the steps of an optimizer update only this rank's part. Before the call, all other hooks must be installed.

    Args:
        optimizer: the optimizer. It must be the only object of its class, because this function changes the class.
        sharded: the optimizer's sharded state.

    Returns:
        Functions that undo the changes. Call the last function first.

    """
    before = sharded.last_hook = optimizer.register_step_pre_hook(sharded.before_step)
    after = optimizer.register_step_post_hook(sharded.after_step)
    hooks: Any = optimizer._optimizer_step_post_hooks
    hooks.move_to_end(after.id, last=False)

    def restoring(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def restoring_step(*args: Any, **kwargs: Any) -> Any:
            try:
                return step(*args, **kwargs)
            finally:
                sharded.restore()  # also if the step raises

        return restoring_step

    return [before.remove, after.remove, wrap_step(optimizer, restoring)]


class ShardedMethods(_Optimizer):
    """The methods that a sharded optimizer has in place of those of other wrapped optimizers."""

    _hvdlite: Any

    def register_step_pre_hook(self, hook: Any) -> Any:
        """As in torch. The hook sees whole gradients, because it is called before this rank's parts replace the parameters."""
        handle = super().register_step_pre_hook(hook)
        sharded, hooks = self._hvdlite.sharded, self._optimizer_step_pre_hooks
        if sharded is not None and sharded.last_hook is not None:  # not so while the optimizer is being wrapped
            hooks.move_to_end(sharded.last_hook.id)  # type: ignore[attr-defined]
        return handle

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The whole state, equal to that of an optimizer that is not sharded. Collective over the process set.

        Raises:
            InvalidArgumentError: a state was loaded on some ranks only; or the job has other ranks than when the state was
                split.
            MismatchError: a rank has joined.
            HorovodInternalError: a rank failed.

        """
        with self._hvdlite.sharded.whole_state(self):
            return super().state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a whole state. The next `step` or `state_dict` drops all but this rank's part.

        The job that saved the state may have had another number of ranks. Load the same state on all ranks; or load it on one
        rank, and then call `broadcast_optimizer_state` on all ranks.

        Raises:
            InvalidArgumentError: `state_dict` is the result of `sharded_state_dict`.

        """
        if "orders" in state_dict:
            raise InvalidArgumentError(
                "load_state_dict: this is the result of sharded_state_dict(), this rank's part of the state: pass it to "
                "load_sharded_state_dict()"
            )
        super().load_state_dict(state_dict)
        self._hvdlite.sharded.unsliced = True

    def sharded_state_dict(self, reader: Any = None, under: str = "optimizer") -> dict[str, Any]:
        """This rank's part of the state, for a ``save`` or ``load`` of ``torch.distributed.checkpoint``. Sends nothing.

        Args:
            reader: None to save. To load, a reader of the checkpoint, such as ``FileSystemReader(folder)``: in this case the
                result is memory for this rank's part. The job that saved the checkpoint may have had another number of ranks.
            under: with a reader, the key of the optimizer's state in the dictionary that was saved; "" if that dictionary was
                the optimizer's state itself.

        Returns:
            Without a reader, a dictionary to save. With a reader, a dictionary that ``load`` fills; then pass this dictionary
            to `load_sharded_state_dict`.

        Raises:
            InvalidArgumentError: the checkpoint has no sharded state of an optimizer at the key `under`; or the job has other
                ranks than when the state was split.
            UnsupportedError: torch is older than 2.6, or has no ``torch.distributed``.

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
        """Loads the result of `sharded_state_dict`, which ``torch.distributed.checkpoint.load`` has filled. Sends nothing.

        Raises:
            InvalidArgumentError: `state_dict` is no result of `sharded_state_dict`; the parameters' names or layouts in memory,
                or the number of groups, differ from the saved ones; or the job has other ranks than when the state was split.

        """
        sharded: ShardedState = self._hvdlite.sharded
        if not state_dict.keys() >= {"state", "param_groups", "orders"}:
            raise InvalidArgumentError(
                "load_sharded_state_dict takes the result of sharded_state_dict(reader), which has the keys 'state', "
                f"'param_groups' and 'orders'; this one has {list(state_dict)}. The result of state_dict(), a whole state, "
                "goes to load_state_dict()"
            )
        own_state = list(sharded.own_state(self))
        if state_dict["orders"] != sharded.orders() or len(state_dict["param_groups"]) != len(self.param_groups):
            raise InvalidArgumentError(
                "load_sharded_state_dict: the state was saved for parameters with other names or another layout in memory (for "
                "example of a channels-last model), or with other groups: build model and optimizer as they were at the save. "
                "To change them, first load the checkpoint into the old optimizer, save its state_dict(), and pass that to "
                "load_state_dict() of the new one"
            )
        own = {each.param: merged(each, state_dict["state"].get(each.name, {})) for each, _ in own_state}
        self.state.clear()
        self.state.update({param: kept for param, kept in own.items() if kept})
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(saved)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises an error when the optimizer is pickled or copied.

        Raises:
            UnsupportedError: always.

        """
        raise UnsupportedError(
            "an optimizer with shard=True cannot be pickled or copied, since this rank has a part of its state only: save "
            "optimizer.state_dict(), which is collective"
        )
