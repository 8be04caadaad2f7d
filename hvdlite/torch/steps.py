"""What has to hold in front of an optimizer's step: its hooks are called, and its parameters are those that are reduced."""

import functools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any

import torch

from hvdlite.errors import InvalidArgumentError

__all__ = ["KnownParameters", "is_inner_step", "reach_steps"]

_STEP = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__  # what calls the hooks around a step


def reach_steps(optimizer: Any, kind: Any) -> Callable[[], None]:
    """Has torch call the hooks of an optimizer's step where its class never called ``Optimizer.__init__``, which sees to that.

    Args:
        optimizer: whose hooks are to be called.
        kind: its class, which no other object has; it is changed.

    Returns:
        A function that takes back what was changed in the optimizer.

    """
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        if not hasattr(optimizer, name):
            setattr(optimizer, name, OrderedDict())
    own = vars(optimizer).get("step")  # a scheduler may have put it there
    if getattr(kind.step, "hooked", False) or getattr(own, "hooked", False):
        return lambda: None
    hooking = torch.optim.Optimizer.profile_hook_step
    if own is None:
        kind.step = hooking(kind.step)
        kind.step.hooked = True
        return lambda: None
    hooked = hooking(lambda _, *args, **kwargs: own(*args, **kwargs))
    reference = weakref.ref(optimizer)

    @functools.wraps(own)
    def step(*args: Any, **kwargs: Any) -> Any:
        return hooked(reference(), *args, **kwargs)

    optimizer.step = step
    return functools.partial(setattr, optimizer, "step", own)


def is_inner_step(optimizer: torch.optim.Optimizer) -> bool:
    """Is a hook called by a step that the same optimizer's step has called? A class and its base class may both call hooks."""
    frame = sys._getframe(1)
    steps = 0
    while frame is not None and steps < 2:
        steps += frame.f_code is _STEP and frame.f_locals.get("self") is optimizer
        frame = frame.f_back  # type: ignore[assignment]
    return steps > 1


_groups_params = itemgetter("params")
_memory_of = attrgetter("_cdata")  # of the object behind a tensor, which autograd calls the hooks of


class KnownParameters:
    """The parameters that an optimizer is known to have, to find out those that it was given behind our back."""

    def __init__(self) -> None:
        self._known: dict[torch.Tensor, tuple[str, int]] = {}
        self._present: list[int] = []

    def add(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """The optimizer has these too."""
        self._known.update((param, (name, _memory_of(param))) for name, param in named)
        self._present = []  # to be looked at

    def _look(self, optimizer: torch.optim.Optimizer) -> list[int]:
        return list(map(_memory_of, chain.from_iterable(map(_groups_params, optimizer.param_groups))))

    def check(self, optimizer: torch.optim.Optimizer, label: str) -> None:
        """Sees that all of the optimizer's parameters are known. Those that were taken away concern nobody.

        Raises:
            InvalidArgumentError: one is not, or was swapped, so that its hooks are gone.

        """
        present = self._look(optimizer)
        if present == self._present:
            return
        changes = []
        for group_place, group in enumerate(optimizer.param_groups):
            for place, param in enumerate(group["params"]):
                name, memory = self._known.get(param, ("", 0))
                if not name:
                    changes.append(f"a tensor of shape {list(param.shape)} is new in group {group_place}, place {place}")
                elif memory != _memory_of(param):
                    changes.append(f"{name!r} was swapped with another tensor (torch.utils.swap_tensors), without its hooks")
        if changes:
            raise InvalidArgumentError(
                f"the parameters of {label} were changed, and DistributedOptimizer has not reduced all their gradients: "
                f"{'; '.join(changes[:4])}{f'; and {len(changes) - 4} more' if len(changes) > 4 else ''}. On all ranks alike, "
                "use optimizer.add_param_group(), or wrap the optimizer again after the change"
            )
        self._present = present
