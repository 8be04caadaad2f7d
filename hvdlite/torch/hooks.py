"""Hooks on a parameter: before and after backward adds to its gradient."""

from collections.abc import Callable, Sequence
from typing import Any

from hvdlite._engine import GradientHook, GradientState, PassDriver

__all__ = ["AtEnd", "fetch_ahead", "install"]


class AtEnd:
    """Does something at the end of a graph task, or when the task is gone without an end."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __call__(self) -> None:
        """The task is over."""
        self._action()

    def __del__(self) -> None:
        self._action()


def install(param: Any, reducer: PassDriver, gradient: GradientState) -> list[Any]:
    """Hooks both ends of the accumulation, of frozen parameters too: they may be thawed later.

    Args:
        param: the parameter. One that cannot have a gradient gets no hooks.
        reducer: whose hooks they are.
        gradient: the state of its gradient.

    Returns:
        What `remove` can be called on.

    """
    if not (param.is_floating_point() or param.is_complex()):
        return []
    frozen = not param.requires_grad
    param.requires_grad_(True)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        present = getattr(param, name)
        if present is not None:
            setattr(param, name, present)  # torch.utils.swap_tensors leaves lists that autograd does not know of any more
    hooks = [
        param.register_hook(GradientHook(reducer, gradient, False)),  # also where autograd.grad only looks at the increment
        param.register_post_accumulate_grad_hook(GradientHook(reducer, gradient, True)),
    ]
    if frozen:
        param.requires_grad_(False)
    return hooks


def fetch_ahead(expected: Sequence[tuple[Sequence[object], Sequence[Any]]]) -> None:
    """Has native hooks fetch into the cache what those of the next gradient read.

    By the time of a parameter's next gradient its hooks, and torch's lists of them, are not in the caches any more: with many
    small gradients that was most of what hooks cost.

    Args:
        expected: of each gradient, in the order in which they probably come, its other objects and what `install` returned.

    """
    following: list[object] = []
    for others, handles in reversed(expected):
        lists = [handle.hooks_dict_ref() or {} for handle in handles]
        found = [hooks.get(handle.id) for hooks, handle in zip(lists, handles, strict=True)]
        hooks = [hook for hook in found if isinstance(hook, GradientHook)]
        if hooks:
            hooks[0].fetch_ahead(following)
            following = [*lists, *hooks, *others]
