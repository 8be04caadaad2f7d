"""Optimizers written otherwise than torch expects."""

from collections import OrderedDict, defaultdict

import torch
from reference import sgd


class Lookahead(torch.optim.Optimizer):
    """Wraps an optimizer, goes half of its way every other step, and has never called ``Optimizer.__init__``."""

    def __init__(self, inner, hooks):
        self.inner = inner
        self.param_groups, self.defaults, self.state = inner.param_groups, inner.defaults, defaultdict(dict)
        self.steps = 0
        self.slow = [param.detach().clone() for group in self.param_groups for param in group["params"]]
        if hooks:
            self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks = OrderedDict(), OrderedDict()

    def step(self, closure=None):
        loss = self.inner.step(closure)
        self.steps += 1
        if self.steps % 2 == 0:
            with torch.no_grad():
                params = [param for group in self.param_groups for param in group["params"]]
                for param, slow in zip(params, self.slow, strict=True):
                    param.copy_(slow.lerp_(param, 0.5))
        return loss

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


class Shrinking(torch.optim.SGD):
    """Goes on after the step of its base class, which calls hooks too."""

    def step(self, closure=None):
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    param.mul_(1 - param.grad.abs().clamp(max=0.1))
        return loss


def lookahead(params):
    return Lookahead(sgd(params), hooks=False)


def hooked_lookahead(params):
    return Lookahead(sgd(params), hooks=True)


def shrinking(params):
    sgd([torch.zeros(1)])  # from now on the base class calls hooks
    return Shrinking(params, lr=0.05)
