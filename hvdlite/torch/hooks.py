"""Hooks on a parameter, which run before and after backward adds to the parameter's gradient."""

from collections.abc import Callable, Sequence
from typing import Any

from hvdlite._engine import GradientHook, GradientState, PassDriver


class AtEnd:
    """A callback for the end of a graph task, which is one run of autograd (`hvdlite.torch.passes`).

    The callback calls a function at the end of the task, and again when the callback is destroyed: a task that raises calls no
    callbacks, but destroys them. So the function is called in any case. The second call of the function must do nothing.
    """

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __call__(self) -> None:
        """Called by the task when it is over."""
        self._action()

    __del__ = __call__


def install(param: Any, reducer: PassDriver, gradient: GradientState) -> list[Any]:
    """Installs hooks that run before and after autograd adds to a gradient, even for frozen parameters, which may train later.

    Args:
        param: the parameter. A parameter that cannot have a gradient gets no hooks.
        reducer: the object that handles the hooks' calls.
        gradient: the state of the parameter's gradient.

    Returns:
        torch's handles of the hooks, for `fetch_ahead`. Their method `remove` removes a hook.

    """
    if not (param.is_floating_point() or param.is_complex()) or param.is_inference():
        return []
    frozen = not param.requires_grad
    param.requires_grad_(True)  # torch refuses hooks on other tensors
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        present = getattr(param, name)
        if present is not None:
            setattr(param, name, present)  # after torch.utils.swap_tensors, only this makes autograd use these lists of hooks
    hooks = [
        param.register_hook(GradientHook(reducer, gradient, False)),  # autograd.grad calls this hook, too
        param.register_post_accumulate_grad_hook(GradientHook(reducer, gradient, True)),
    ]
    if frozen:
        param.requires_grad_(False)
    return hooks


def fetch_ahead(expected: Sequence[tuple[Sequence[object], Sequence[Any]]]) -> None:
    """Lets native hooks prefetch the memory that the hooks of the next gradient will read.

    From one backward pass to the next, a parameter's hooks and torch's lists of hooks leave the caches. Without prefetching,
    hooks of small gradients spend most of their time on cache misses.

    Args:
        expected: for each gradient a pair of lists: other objects that the gradient's hooks use, and the result of `install`.
            The pairs are in the order in which backward will probably make the gradients.

    """
    following: list[object] = []
    for others, handles in reversed(expected):
        lists = [handle.hooks_dict_ref() or {} for handle in handles]
        found = [hooks.get(handle.id) for hooks, handle in zip(lists, handles, strict=True)]
        hooks = [hook for hook in found if isinstance(hook, GradientHook)]
        if hooks:
            hooks[0].fetch_ahead(following)
            following = [*lists, *hooks, *others]
