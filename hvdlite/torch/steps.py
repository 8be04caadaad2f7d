"""Functions for the hooks around an optimizer's step.

They make torch call the hooks, tell inner steps from outer ones, replace closures, and find parameters that were added without
hvdlite, whose gradients would not be reduced.
"""

import functools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch

from hvdlite.errors import InvalidArgumentError

_STEP = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__  # the code of the function that calls a step's hooks


def wrap_step(optimizer: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """Replaces the step of an optimizer's class, and the ``optimizer.step`` that a scheduler may have installed.

    Args:
        optimizer: the optimizer. It must be the only object of its class.
        wrap: a function that makes the new step from the present one. The first argument of both steps is the optimizer.

    Returns:
        A function that puts back the scheduler's ``optimizer.step``, if there is one.

    """
    kind: Any = type(optimizer)
    kind.step = wrap(kind.step)
    own = vars(optimizer).get("step")  # a scheduler's step, which calls the step that the class had
    if own is None:
        return lambda: None
    wrapped = wrap(lambda _, *args, **kwargs: own(*args, **kwargs))
    reference = weakref.ref(optimizer)

    @functools.wraps(own)
    def step(*args: Any, **kwargs: Any) -> Any:
        return wrapped(reference(), *args, **kwargs)

    optimizer.step = step
    return lambda: setattr(reference(), "step", own)


def reach_steps(optimizer: Any) -> Callable[[], None]:
    """Makes torch call the hooks of an optimizer's step, even if the optimizer never called ``Optimizer.__init__``.

    Returns a function that puts back the scheduler's ``optimizer.step`` if `reach_steps` has replaced this step, and otherwise
    does nothing.
    """
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if not hasattr(optimizer, name):
            setattr(optimizer, name, OrderedDict())
    kind: Any = type(optimizer)
    if getattr(kind.step, "hooked", False) or getattr(optimizer.step, "hooked", False):
        return lambda: None
    undo = wrap_step(optimizer, torch.optim.Optimizer.profile_hook_step)
    kind.step.hooked = True
    return undo


def is_inner_step(optimizer: torch.optim.Optimizer) -> bool:
    """Does the hook that calls this function run for a step inside another step of the same optimizer?

    If the steps of a class and of its base class both call hooks, one step is inside the other.
    """
    frame = sys._getframe(1)
    steps = 0
    while frame is not None and steps < 2:
        steps += frame.f_code is _STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return steps > 1


def change_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Callable[[], Any]], Callable[[], Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Gives a step another closure. Returns what the hook before the step must return; None if the step has no closure.

    Args:
        args: the step's arguments, as the hook gets them: the first is the optimizer.
        kwargs: the step's keyword arguments.
        change: makes the other closure from the step's closure.

    """
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if not callable(closure):
        return None
    changed = change(closure)
    return ((args[0], changed, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": changed})


_params_of = itemgetter("params")


class ParameterWatch:
    """Finds parameters that the program has added to an optimizer without hvdlite.

    Args:
        known: maps each known parameter to its name. When hvdlite adds a parameter to the optimizer, this mapping gets it, too.
        label: the name of the optimizer, for error texts.
    """

    def __init__(self, known: Mapping[torch.Tensor, str], label: str) -> None:
        self._known = known
        self._label = label
        self._present: list[torch.Tensor] = []  # the optimizer's parameters at the last check

    def check(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """A hook before every step. Checks that all of the optimizer's parameters are known. Removed parameters do not matter.

        Raises:
            InvalidArgumentError: a parameter is not known, so its gradient would not be reduced.

        """
        present = list(chain.from_iterable(map(_params_of, optimizer.param_groups)))
        if len(present) == len(self._present) and all(map(is_, present, self._present)):
            return
        new = [
            f"a tensor of shape {list(param.shape)} is new in group {group_place}, place {place}"
            for group_place, group in enumerate(optimizer.param_groups)
            for place, param in enumerate(group["params"])
            if param not in self._known
        ]
        if new:
            raise InvalidArgumentError(
                f"the parameters of {self._label} were changed, and DistributedOptimizer has not reduced all their gradients: "
                f"{'; '.join(new[:4])}{f'; and {len(new) - 4} more' if len(new) > 4 else ''}. On all ranks alike, "
                "use optimizer.add_param_group(), or wrap the optimizer again after the change"
            )
        self._present = present
