"""`ElasticJob`: a training whose steps are applied by all ranks that live, or by none."""

import copy
import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.utils.data

from hvdlite.basics import rank, size
from hvdlite.elastic import recovery
from hvdlite.elastic.leaving import LeaveRequest, leave_if_asked
from hvdlite.elastic.steps import CopyPlan, plan_copy, share_of_batch
from hvdlite.errors import InvalidArgumentError, PeerLostError
from hvdlite.runtime import RUNTIME
from hvdlite.torch.coded_methods import CodedMethods
from hvdlite.torch.elastic.samples import SeededSamples
from hvdlite.torch.state import broadcast_object, broadcast_optimizer_state, broadcast_parameters

__all__ = ["ElasticJob", "StepOutcome"]


@dataclass
class StepOutcome:
    """What became of a step.

    Attributes:
        applied: does the step count? If not, its batch comes again.
    """

    applied: bool = False


class ElasticJob:
    """A training over a global order of samples, which goes on when ranks are lost; no step is lost or counted twice.

    `batch_size` is that of all ranks together, whatever their number. Each batch is dealt out to the ranks, which may get
    different numbers of samples: gradients are weighted by these (``optimizer.weight``), so the loss has to be a mean over the
    samples.

    A rank is lost when a signal has ended its process. The others then agree on who lives, and go on in a new job. If any of
    them had applied the step, it counts, and the others copy its state from its memory. If none had, model, optimizer,
    scheduler, random numbers and all other state are as before the step, and `batches` gives its batch again, dealt out to the
    ranks that are left. Each rank keeps its own random numbers. A rank that gets SIGTERM ends its step and leaves. All of this
    needs Open MPI 5 or newer, started with ``hvdlite run --elastic`` or ``mpirun --with-ft ulfm``; elsewhere a lost rank ends
    the program with PeerLostError.

    Spares (``hvdlite run --spares``) make the same objects, and take the places of lost ranks after a step, with a copy of the
    state.

    Making one is collective over all ranks: they get rank 0's state.

    Args:
        model: a module.
        optimizer: a `hvdlite.torch.DistributedOptimizer` of its parameters.
        batch_size: the number of samples in a step, on all ranks together.
        scheduler: stepped by the program inside of `step`; or None.
        scaler: a GradScaler, or None. Only with one may a step pass without ``optimizer.step()``.
        seed: of the order of samples, and of the random numbers while a sample is loaded; the same on all ranks.
        checkpoint: the path of a file that rank 0 reads and writes, best where every host sees it. If it exists, training goes
            on from it, with any number of ranks. "": no file.
        save_every: the number of steps between two checkpoints. Rank 0 writes them; a reader sees a whole one at any time.
        **kept: further objects with ``state_dict()`` and ``load_state_dict()`` that belong to the state: averaged models, say.

    Attributes:
        position: the number of steps that were applied.

    Raises:
        InvalidArgumentError: an argument is none of these, or the checkpoint is of another seed or batch size.
        NotInitializedError: `init` has not been called.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        batch_size: int,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        seed: int = 0,
        checkpoint: str | os.PathLike[str] = "",
        save_every: int = 0,
        **kept: Any,
    ) -> None:
        if getattr(optimizer, "_hvdlite", None) is None:
            raise InvalidArgumentError(
                f"elastic.Job takes an hvdlite.torch.DistributedOptimizer, got {type(optimizer).__name__}"
            )
        if optimizer._hvdlite.sharded is not None:  # type: ignore[attr-defined]
            raise InvalidArgumentError(
                "elastic.Job cannot go on with an optimizer of shard=True: a lost rank takes its part of the optimizer's state "
                "along. Leave shard=True out"
            )
        if isinstance(optimizer, CodedMethods):
            raise InvalidArgumentError(
                "elastic.Job cannot go on with a compression that keeps state from step to step (powersgd, error feedback): "
                "what a step that does not count has changed in it would stay. Pass one without state, as Compression.int8()"
            )
        if batch_size < 1 or save_every < 0 or bool(checkpoint) != bool(save_every):
            raise InvalidArgumentError(
                f"elastic.Job(batch_size={batch_size}, checkpoint={str(checkpoint)!r}, save_every={save_every}): batch_size is "
                "at least 1, and checkpoint and save_every belong together"
            )
        self.position = 0
        self.model, self.optimizer, self.scaler = model, optimizer, scaler
        self.batch_size, self.seed = batch_size, seed
        kept = {"scheduler": scheduler, "scaler": scaler, **kept}
        self._kept = {name: value for name, value in kept.items() if value is not None}
        for name, value in self._kept.items():
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise InvalidArgumentError(
                    f"elastic.Job({name}=...): a {type(value).__name__} has no state_dict() and load_state_dict()"
                )
        self._checkpoint, self._save_every = os.fspath(checkpoint), save_every
        self._call: recovery.Call | None = None
        self._jobs = 0
        self._steps_of_epoch = 1
        self._batch_is_open = self._in_step = self._stepped = False
        self._reset_callbacks: list[Callable[[], Any]] = []
        optimizer.register_step_pre_hook(self._before_optimizer)
        optimizer.register_step_post_hook(self._after_optimizer)
        self._has_state = RUNTIME.spare is None
        if not self._has_state:
            return  # the ranks have begun: batches() brings their state
        problem = self._resume() if rank() == 0 else ""
        self.position, problem = broadcast_object((self.position, problem), name="hvdlite.elastic.position")
        if problem:
            raise InvalidArgumentError(problem)
        self._copy(CopyPlan(self.position, 0, tuple(range(1, size()))))

    # --- what the program asks ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the epoch whose step comes next."""
        return self.position // self._steps_of_epoch

    @property
    def ends_epoch(self) -> bool:
        """Is the step that runs the last one of its epoch? Then a scheduler of epochs takes its step."""
        return (self.position + 1) % self._steps_of_epoch == 0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Adds functions without arguments that are called when ranks were lost: for what depends on their number."""
        self._reset_callbacks.extend(callbacks)

    def batches(self, dataset: Sized, epochs: int, *, shuffle: bool = True, **loader: Any) -> Iterator[Any]:
        """This rank's shares of the batches from the present position on. All ranks end it together.

        Each batch has to be used in one `step`. Every sample of an epoch is used in exactly one applied step. After a loss,
        what was loaded ahead is dropped.

        Args:
            dataset: with ``len()`` and ``[index]``, the same on all ranks.
            epochs: the number of epochs from the very beginning of the training.
            shuffle: does each epoch have an order of its own?
            **loader: for `torch.utils.data.DataLoader`, such as ``num_workers`` and ``collate_fn``.

        Raises:
            InvalidArgumentError: a batch was taken and not used in a `step`, or `batches` is running already.
            UnsupportedError: fewer ranks are left than HVDLITE_ELASTIC_MIN_RANKS.
        """
        if self._call is not None:
            raise InvalidArgumentError("batches() of an elastic.Job is running already")
        self._steps_of_epoch = -(-len(dataset) // self.batch_size)
        try:
            call = self._call = recovery.Call()
            if call.joined:
                self._enter(lambda: call.joined)
            with LeaveRequest():
                while not self._has_ended(epochs * self._steps_of_epoch):
                    for batch in self._of_one_epoch(dataset, shuffle, loader):
                        yield batch
                        leave_if_asked(f"after step {self.position}")
        except recovery.Passed:
            return
        finally:
            self._call = None

    @contextmanager
    def step(self) -> Iterator[StepOutcome]:
        """Around one step: forward, backward and exactly one ``optimizer.step()``. It swallows nothing but the loss of a rank.

        Raises:
            InvalidArgumentError: there is no batch for it, it is inside of another one, or it ended without
                ``optimizer.step()``.
        """
        if self._in_step or not self._batch_is_open:
            raise InvalidArgumentError("each job.step() takes one batch of job.batches(), and contains no other job.step()")
        outcome, before = StepOutcome(), self._see()
        self._in_step, self._batch_is_open, self._stepped = True, False, False
        position = self.position
        try:
            yield outcome
            if not self._stepped and self.scaler is None:
                raise InvalidArgumentError("a job.step() ended without optimizer.step(): each has exactly one")
            self.position += 1
        except PeerLostError as loss:
            if self._stepped:
                self.position += 1
            else:
                self._go_back(before)
            self._recover(loss)
        finally:
            self._in_step = False
        outcome.applied = self.position > position
        if outcome.applied and self._save_every and self.position % self._save_every == 0 and rank() == 0:
            self._save()

    # --- batches ------------------------------------------------------------------------------------------------------------

    def _of_one_epoch(self, dataset: Sized, shuffle: bool, loader: dict[str, Any]) -> Iterator[Any]:
        """What is left of an epoch, up to the next loss."""
        epoch, first = divmod(self.position, self._steps_of_epoch)
        order = list(range(len(dataset)))
        if shuffle:
            random.Random(f"{self.seed} {epoch}").shuffle(order)
        shares = [
            share_of_batch(order, number, self.batch_size, rank(), size()) for number in range(first, self._steps_of_epoch)
        ]
        samples = SeededSamples(cast(Any, dataset), self.seed, epoch)
        made: Any = torch.utils.data.DataLoader(samples, batch_sampler=[indices for indices, _ in shares], **loader)
        jobs = self._jobs
        for (_, count), batch in zip(shares, made, strict=True):
            position = self.position
            cast(Any, self.optimizer).weight = count
            self._batch_is_open = True
            yield batch
            if self._batch_is_open:
                raise InvalidArgumentError("a batch of job.batches() was not used: put its step into `with job.step():`")
            # After a loss all go on with a batch: others may have heard of it while they looked for a spare.
            if self._jobs == jobs:
                self._admit_spare()
            if self._jobs != jobs or self.position != position + 1:
                return

    def _has_ended(self, last: int) -> bool:
        """Have all ranks applied the last step? Collective over the ranks when this one has."""
        while self.position >= last:
            try:
                assert self._call is not None
                self._call.end()
            except PeerLostError as loss:
                self._recover(loss)
            else:
                return True
        return False

    # --- other ranks --------------------------------------------------------------------------------------------------------

    def _admit_spare(self) -> None:
        """Goes on with a spare if one is ready. Collective, after a step."""
        call = self._call
        assert call is not None
        try:
            ready = call.spare_is_ready()
        except PeerLostError as loss:
            self._recover(loss)
        else:
            if ready:
                self._enter(lambda: call.admit(self.position))

    def _enter(self, job: Callable[[], Sequence[int | None]]) -> None:
        """Enters a job with a function that returns the numbers of steps that its ranks have applied."""
        try:
            steps = job()
            self._jobs += 1
            self.optimizer.zero_grad()
            self._copy(plan_copy(steps))
            for callback in self._reset_callbacks:
                callback()
        except PeerLostError as loss:
            self._recover(loss)

    def _recover(self, loss: PeerLostError) -> None:
        why, call = recovery.why_not(loss), self._call
        if why:
            at = f" The last checkpoint is in {self._checkpoint}" if self._checkpoint else ""
            logging.getLogger("hvdlite").error("elastic training cannot go on after step %d: %s.%s", self.position, why, at)
            raise loss
        assert call is not None
        self._enter(lambda: call.recover(loss, self.position if self._has_state else None))

    def _copy(self, plan: CopyPlan) -> None:
        """Gives the ranks that are behind the state of one that is not. Collective over the ranks.

        If the source is lost meanwhile, what has come may be half a state. So each other rank keeps its own until all has come.
        """
        if not plan.receivers:
            return
        backup = None if rank() == plan.source else self._state()
        try:
            broadcast_parameters(self.model.state_dict(), plan.source)
            broadcast_optimizer_state(self.optimizer, plan.source)
            rest = {name: value.state_dict() for name, value in self._kept.items()}
            rest = broadcast_object(rest, plan.source, name="hvdlite.elastic.state")
        except PeerLostError:
            if backup is not None:
                self._load(backup)
            raise
        if backup is not None:
            for name, value in self._kept.items():
                value.load_state_dict(rest[name])
            self.position, self._has_state = plan.step, True

    # --- the state ----------------------------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        """A copy of all that a checkpoint has."""
        objects = {"model": self.model, "optimizer": self.optimizer, **self._kept}
        return {
            "position": self.position,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "objects": {name: copy.deepcopy(value.state_dict()) for name, value in objects.items()},
        }

    def _load(self, state: dict[str, Any]) -> None:
        for name, value in {"model": self.model, "optimizer": self.optimizer, **self._kept}.items():
            value.load_state_dict(state["objects"][name])
        self.position = state["position"]

    def _resume(self) -> str:
        """Loads the checkpoint, if there is one. Returns what is wrong with it, for all ranks."""
        if not self._checkpoint or not os.path.exists(self._checkpoint):
            return ""
        try:
            state = torch.load(self._checkpoint, weights_only=False)
            for name in ("seed", "batch_size"):
                if state[name] != getattr(self, name):
                    return (
                        f"the checkpoint {self._checkpoint} is of a training with {name}={state[name]}, and this one has "
                        f"{name}={getattr(self, name)}: samples would be used twice, or not at all"
                    )
            self._load(state)
        except Exception as error:  # whatever a file of something else brings about
            return f"the checkpoint {self._checkpoint} does not fit this job: {type(error).__name__}: {error}"
        return ""

    def _save(self) -> None:
        part = f"{self._checkpoint}.part"
        with open(part, "wb") as file:
            torch.save(self._state(), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self._checkpoint)

    def _see(self) -> tuple[Any, ...]:
        """What a step changes before ``optimizer.step()``: buffers, random numbers, and what else is kept."""
        kept = {name: copy.deepcopy(value.state_dict()) for name, value in self._kept.items()}
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        return kept, buffers, torch.get_rng_state(), gpus, random.getstate(), np.random.get_state()

    def _go_back(self, seen: tuple[Any, ...]) -> None:
        kept, buffers, torch_state, gpus, python_state, numpy_state = seen
        for name, value in self._kept.items():
            value.load_state_dict(kept[name])
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)
        torch.set_rng_state(torch_state)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
        random.setstate(python_state)
        np.random.set_state(numpy_state)

    # --- the optimizer ------------------------------------------------------------------------------------------------------

    def _before_optimizer(self, *_: Any) -> None:
        if self._call is None:
            return
        if not self._in_step or self._stepped:
            raise InvalidArgumentError(
                "optimizer.step() outside of job.step(), or a second one in it: each job.step() has exactly one, which all "
                "ranks apply"
            )

    def _after_optimizer(self, *_: Any) -> None:
        self._stepped = self._in_step
