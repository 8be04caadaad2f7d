"""`ElasticJob`: a training in which each step is applied by all living ranks or by none."""

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
    """The outcome of a step.

    Attributes:
        applied: was the step applied? If not, `batches` gives its batch again.
    """

    applied: bool = False


class ElasticJob:
    """A training over a global order of samples that continues when ranks are lost. No step is lost or applied twice.

    `batch_size` is that of all ranks together, whatever their number. Each batch is dealt out to the ranks, which may get
    different numbers of samples: gradients are weighted by these (``optimizer.weight``), so the loss has to be a mean over the
    samples.

    A rank is lost when a signal has ended its process. The others then agree on the living ranks, and continue in a new job.
    If at least one of them has applied the step, the step counts, and the others copy the state of that rank. If none has,
    model, optimizer, scheduler, random numbers and all other state return to the values before the step, and `batches` gives
    the same batch again, divided among the remaining ranks. Each rank keeps its own random numbers. A rank that gets SIGTERM
    ends its step and leaves. All of this needs Open MPI 5 or newer, started with ``hvdlite run --elastic`` or ``mpirun
    --with-ft ulfm``; otherwise a lost rank ends the program with PeerLostError.

    Spares (``hvdlite run --spares``) make the same objects. After a step they replace lost ranks, and get a copy of the state.

    The constructor is collective over all ranks, which get rank 0's state.

    Args:
        model: a module.
        optimizer: a `hvdlite.torch.DistributedOptimizer` of its parameters.
        batch_size: the number of samples in a step, on all ranks together.
        scheduler: a scheduler, whose ``step()`` the program calls inside of `step`; or None.
        scaler: a GradScaler, or None. Only with a scaler may a step have no ``optimizer.step()``.
        seed: the seed of the order of samples, and of the random numbers while a sample is loaded; the same on all ranks.
        checkpoint: the path of a file that rank 0 reads and writes, best in a folder that every host sees. If the file exists,
            training continues from it, with any number of ranks. "": no file.
        save_every: the number of steps between two checkpoints. Rank 0 replaces the file at once, so a reader never sees a part
            of a checkpoint.
        **kept: more objects with ``state_dict()`` and ``load_state_dict()`` that belong to the state, such as averaged models.

    Attributes:
        position: the number of steps that were applied.

    Raises:
        InvalidArgumentError: an argument is wrong, or the checkpoint was made with another seed or batch size.
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
                "elastic.Job cannot use an optimizer with shard=True: with a lost rank its part of the optimizer's state is "
                "lost. Leave shard=True out"
            )
        if isinstance(optimizer, CodedMethods):
            raise InvalidArgumentError(
                "elastic.Job cannot use a compression that keeps state from step to step (powersgd, error feedback): a step "
                "that is not applied would change that state. Pass one without state, such as Compression.int8()"
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
            return  # this is a spare, and the ranks have begun: batches() gets their state
        problem = self._resume() if rank() == 0 else ""
        self.position, problem = broadcast_object((self.position, problem), name="hvdlite.elastic.position")
        if problem:
            raise InvalidArgumentError(problem)
        self._copy(CopyPlan(self.position, 0, tuple(range(1, size()))))

    # --- for the program ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the epoch of the next step."""
        return self.position // self._steps_of_epoch

    @property
    def ends_epoch(self) -> bool:
        """Is the present step the last one of its epoch? Then call ``step()`` of a scheduler that counts epochs."""
        return (self.position + 1) % self._steps_of_epoch == 0

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Adds functions without arguments. They are called after ranks were lost, for example to change a learning rate."""
        self._reset_callbacks.extend(callbacks)

    def batches(self, dataset: Sized, epochs: int, *, shuffle: bool = True, **loader: Any) -> Iterator[Any]:
        """Yields this rank's shares of the batches, from the present position on. It ends on all ranks together.

        Each batch must be used in one `step`. Every sample of an epoch is used in exactly one applied step. After a loss,
        batches that were loaded ahead are dropped.

        Args:
            dataset: an object with ``len()`` and ``[index]``, the same on all ranks.
            epochs: the number of epochs, counted from the beginning of the training.
            shuffle: does each epoch have an order of its own?
            **loader: arguments of `torch.utils.data.DataLoader`, such as ``num_workers`` and ``collate_fn``.

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
        """A with statement around one step: forward, backward and exactly one ``optimizer.step()``. It catches only lost ranks.

        Raises:
            InvalidArgumentError: no batch was taken for it, it is inside of another `step`, or it ended without
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
        """Yields the remaining batches of the present epoch, until a rank is lost."""
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
            # After a loss all ranks continue with a batch: some may have noticed the loss while they looked for a spare.
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
        """Adds a spare to the ranks if one is ready. Collective, after a step."""
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
        """Enters a new job. `job` makes it, and returns the number of applied steps of each of its ranks."""
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
        """Gives the state of an up-to-date rank to the ranks that lack its last step. Collective over the ranks.

        If the source is lost meanwhile, the received state is incomplete. So each rank keeps its own state until all has come.
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
        """A copy of the whole state, for a checkpoint."""
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
        """Loads the checkpoint, if the file exists. Returns a text that says what is wrong with it, or ""."""
        if not self._checkpoint or not os.path.exists(self._checkpoint):
            return ""
        try:
            state = torch.load(self._checkpoint, weights_only=False)
            for name in ("seed", "batch_size"):
                if state[name] != getattr(self, name):
                    return (
                        f"the checkpoint {self._checkpoint} is of a training with {name}={state[name]}, and this one has "
                        f"{name}={getattr(self, name)}: some samples would be used twice and others never"
                    )
            self._load(state)
        except Exception as error:  # another file can cause any exception
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
        """A copy of what a step changes before ``optimizer.step()``: buffers, random numbers, and the objects in `kept`."""
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
