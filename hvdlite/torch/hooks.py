"""Hooks on a parameter: before and after backward adds to its gradient."""

from collections.abc import Callable, Sequence
from typing import Any

from hvdlite._engine import GradientHook, GradientState, PassDriver

__all__ = ["AtEnd", "fetch_ahead", "install"]


class AtEnd:
    """Calls a function at the end of a graph task, and again when the task is destroyed.

    So the function is called even if the task ends without its callbacks. A second call must do nothing.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __call__(self) -> None:
        """Called by the task when it is over."""
        self._action()

    def __del__(self) -> None:
        self._action()


def install(param: Any, reducer: PassDriver, gradient: GradientState) -> list[Any]:
    """Installs hooks before and after the accumulation, even for frozen parameters, which may train later.

    Args:
        param: the parameter. One that cannot have a gradient gets no hooks.
        reducer: the object that handles the hooks' calls.
        gradient: the state of the parameter's gradient.

    Returns:
        Objects with a method `remove`.

    """
    if not (param.is_floating_point() or param.is_complex()):
        return []
    frozen = not param.requires_grad
    param.requires_grad_(True)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        present = getattr(param, name)
        if present is not None:
            setattr(param, name, present)  # after torch.utils.swap_tensors, autograd does not use the old lists of hooks
    hooks = [
        param.register_hook(GradientHook(reducer, gradient, False)),  # autograd.grad calls it too
        param.register_post_accumulate_grad_hook(GradientHook(reducer, gradient, True)),
    ]
    if frozen:
        param.requires_grad_(False)
    return hooks


def fetch_ahead(expected: Sequence[tuple[Sequence[object], Sequence[Any]]]) -> None:
    """Lets native hooks prefetch the memory that the hooks of the next gradient will read.

    Between two gradients of one parameter, its hooks and torch's lists of hooks leave the caches. With many small gradients
    most of the hooks' time was spent on cache misses.

    Args:
        expected: for each gradient, in the probable order: other objects that its hooks use, and the result of `install`.

    """
    following: list[object] = []
    for others, handles in reversed(expected):
        lists = [handle.hooks_dict_ref() or {} for handle in handles]
        found = [hooks.get(handle.id) for hooks, handle in zip(lists, handles, strict=True)]
        hooks = [hook for hook in found if isinstance(hook, GradientHook)]
        if hooks:
            hooks[0].fetch_ahead(following)
            following = [*lists, *hooks, *others]
