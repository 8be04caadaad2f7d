"""Adasum for an optimizer: each rank takes a step with its own gradients, and Adasum combines the changes of all ranks.

As in Horovod, Adasum combines the changes of the parameters and not the gradients. So the combined changes include the
optimizer's momentum, or Adam's scale of each element. Each rank keeps its own optimizer state.
csrc/collectives/allreduce_adasum.cc describes the algorithm and names the paper.
"""

from collections.abc import Iterable
from typing import Any

import torch

from hvdlite.compression import NoneCompressor
from hvdlite.ops import allreduce_async
from hvdlite.requests import Adasum
from hvdlite.runtime import RUNTIME
from hvdlite.torch.agreement import ReducerSettings, agree
from hvdlite.torch.gpu import reachable
from hvdlite.torch.parameter_gradient import ParameterGradient
from hvdlite.torch.start_check import leaves_of_gradients, make_check
from hvdlite.torch.steps import is_inner_step


class AdasumStep:
    """The hooks before and after the steps of one optimizer."""

    def __init__(self, settings: ReducerSettings, optimizer: torch.optim.Optimizer) -> None:
        self._settings = settings
        self._gradients: list[ParameterGradient] = []
        self._check = make_check(optimizer, settings, self._gradients)
        self._check.updated = True  # not yet true, but with Adasum the ranks can compare parameters before the first step
        self._compressor: Any = settings.compression or NoneCompressor
        self._engine: Any = None  # the engine of the job whose ranks have agreed
        self._generation = 0  # the number of agreements in this job
        self._agreed = False
        self._start: list[tuple[ParameterGradient, torch.Tensor]] = []  # copies of the parameters before the step

    def add(self, named: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Adds parameters with unique names."""
        self._gradients += [ParameterGradient(name, param) for name, param in named]
        self._agreed = False

    def before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Copies the parameters that train.

        Collective over the process set in the first step of a job, in the steps until the start check (`hvdlite.start_check`)
        is over, and in the first step after `add`.

        Raises:
            MismatchError, HorovodInternalError: the ranks have different parameters or settings, or a rank failed.
            NotInitializedError: hvdlite was shut down.

        """
        if is_inner_step(optimizer):
            return
        self._agree()
        self._start = [
            (gradient, gradient.param.detach().clone()) for gradient in self._gradients if gradient.param.requires_grad
        ]

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Replaces the changes that this rank's step has made by the combined changes of all ranks.

        Collective over the process set.

        Raises:
            HvdliteError: the ranks train different parameters, a rank failed, or Adasum does not take the dtype of a parameter.
                After an error the parameters are as before the step, but the optimizer's state is as after the step.

        """
        if is_inner_step(optimizer):
            return
        start, self._start = self._start, []
        with torch.no_grad():
            try:
                changes = self._combine(start)
                for (gradient, before), change in zip(start, changes, strict=True):
                    gradient.param.copy_(before).add_(change)
            except BaseException:
                for gradient, before in start:
                    gradient.param.copy_(before)
                raise

    def _agree(self) -> None:
        if self._engine is not RUNTIME.engine:
            # The first agreement in this job. The count of agreements begins anew, because in earlier jobs the ranks may
            # have made different numbers of agreements.
            self._engine, self._agreed, self._generation = RUNTIME.engine, False, 0
        if not self._agreed:
            self._generation += 1
            agreed = agree(self._settings, self._gradients, None, self._generation, unchecked=self._check.pending)
            if agreed.unchecked:
                self._check.begin_anew()
            self._agreed = True
        if self._check.pending:
            self._check.see(leaves_of_gradients(gradient.param for gradient in self._gradients))
            self._check.round()

    def _combine(self, start: list[tuple[ParameterGradient, torch.Tensor]]) -> list[torch.Tensor]:
        pending = []
        for gradient, before in start:
            wire, context = self._compressor.compress(reachable(gradient.param.detach() - before))
            pending.append(
                (allreduce_async(wire, None, gradient.name, Adasum, process_set=self._settings.process_set), context)
            )
        return [
            self._compressor.decompress(handle.synchronize(), context).to(before.device)
            for (handle, context), (_, before) in zip(pending, start, strict=True)
        ]
