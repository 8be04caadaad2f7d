"""`ElasticJob`: a training that continues when ranks are lost. If a living rank has applied a step, all
living ranks apply this step; else the step is repeated.

(Over 400 lines, because a step and the return after the loss of a rank change the same state.)
"""

import logging
import os
import random
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.utils.data

from hvdlite.basics import rank, size
from hvdlite.elastic import recovery
from hvdlite.elastic.leaving import LeaveRequest, leave_if_asked
from hvdlite.elastic.steps import CopyPlan, is_commit_due, plan_copy, share_of_batch
from hvdlite.errors import InvalidArgumentError, PeerLostError
from hvdlite.objects import broadcast_object
from hvdlite.ops import barrier
from hvdlite.runtime import RUNTIME
from hvdlite.torch.elastic.checkpoint_file import CheckpointFile
from hvdlite.torch.elastic.job_state import Commit, JobState
from hvdlite.torch.elastic.samples import SeededSamples

__all__ = ["ElasticJob", "StepOutcome"]


@dataclass
class StepOutcome:
    """The outcome of a step.

    Attributes:
        applied: was the step applied? If it was not, `batches` gives the same batch again. With a sharded optimizer, a later
            loss of a rank may take back the steps that were applied after the last commit (`ElasticJob.committed`).
    """

    applied: bool = False


class ElasticJob:
    """A training that takes samples in a global order, and continues when ranks are lost. Every step counts exactly once.

    `batch_size` counts the samples of all ranks together, and does not depend on the number of ranks. Each batch is divided
    among the ranks, which may get different numbers of samples: gradients are weighted by these numbers (``optimizer.weight``),
    so the training loss has to be a mean over the samples.

    A rank is lost when a signal has ended its process. The other ranks then agree on which ranks live, and continue in a new
    job. If a living rank has applied the step, the step counts, and the living ranks that have not applied it copy that rank's
    state. If no living rank has applied it, model, optimizer, scheduler, random numbers and all other state return to the
    values before the step, and `batches` gives the same batch again, divided among the remaining ranks. A rank that copies
    another rank's state keeps its own random numbers. A rank that gets SIGTERM, and has no handler for it, leaves after its
    present step or the next one. All of this needs ``hvdlite run --elastic`` with Open MPI 5 (docs/elastic.md has mpirun's
    options). If this is missing, a lost rank ends the program with PeerLostError.

    If the optimizer is sharded (``shard=True``), a lost rank's part of the optimizer's state is lost. So every `commit_every`
    steps each rank gets a copy of the whole state, in host memory. After the loss of a rank all ranks return to the last copy
    (the last *commit*): they do the later steps again, with the same samples. Before a rank leaves after SIGTERM, all ranks
    commit, so no step is repeated.

    The state of a compression (PowerSGD, error feedback) returns with all other state, so a step that is not applied does not
    change the residuals. The residuals of a lost rank are lost. Ranks that copy the state from another rank begin without
    residuals.

    Spares (extra processes, ``hvdlite run --spares``) run the same program, so they make an `ElasticJob`, too. After a step,
    spares replace lost ranks, and get a copy of the state. The constructor is collective over all ranks, and gives all of them
    the state of the checkpoint if there is one, else rank 0's state.

    Args:
        model: a module.
        optimizer: a `hvdlite.torch.DistributedOptimizer` of its parameters, over all ranks, with op=Average, and with
            ``sparse_as_dense=True`` if gradients are sparse. Not LBFGS.
        batch_size: the number of samples in a step, on all ranks together.
        scheduler: a scheduler, whose ``step()`` the program calls inside of `step`; or None.
        scaler: a GradScaler, or None. A scaler skips ``optimizer.step()`` if gradients are not finite. Such a step counts, too.
        seed: seeds the order of samples and, for each sample, the random numbers of Python, NumPy and torch (on the CPU). Pass
            the same seed on all ranks.
        checkpoint: the path of a file, in a folder that exists on every host. One rank on each of two hosts writes it, so hosts
            need not share the folder. If files exist, training continues from the newest one of all hosts. The job that wrote
            the file may have had another number of ranks. "": no file.
        save_every: the number of steps between two checkpoints. Each checkpoint replaces the file atomically, so a reader never
            sees a part of one. If a rank that writes the file has to leave, it first writes a checkpoint.
        commit_every: the number of steps between two commits. Only a sharded optimizer needs commits.
        **kept: more objects with ``state_dict()`` and ``load_state_dict()`` that belong to the state, such as averaged models.

    Attributes:
        position: the number of steps that were applied.

    Raises:
        InvalidArgumentError: an argument is wrong; or a checkpoint cannot be loaded, or was made with another seed or batch
            size; or the folder of the checkpoint does not exist on some host.
        UnsupportedError: the optimizer is LBFGS.
        MismatchError, HorovodInternalError: the ranks have different models or optimizers, or a rank failed.
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
        commit_every: int = 100,
        **kept: Any,
    ) -> None:
        if getattr(optimizer, "_hvdlite", None) is None:
            raise InvalidArgumentError(
                f"elastic.Job takes an hvdlite.torch.DistributedOptimizer, got {type(optimizer).__name__}"
            )
        if batch_size < 1 or commit_every < 1 or save_every < 0 or bool(checkpoint) != bool(save_every):
            raise InvalidArgumentError(
                f"elastic.Job(batch_size={batch_size}, checkpoint={str(checkpoint)!r}, save_every={save_every}, "
                f"commit_every={commit_every}): batch_size and commit_every must be at least 1, and save_every must not be "
                "negative; give both checkpoint and save_every, or neither"
            )
        self.position = 0
        self.model, self.optimizer, self.scaler = model, optimizer, scaler
        self.batch_size, self.seed = batch_size, seed
        kept = {name: value for name, value in {"scheduler": scheduler, "scaler": scaler, **kept}.items() if value is not None}
        for name, value in kept.items():
            if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
                raise InvalidArgumentError(
                    f"elastic.Job({name}={value!r}): an object to keep needs state_dict() and load_state_dict(); is the "
                    "argument's name wrong?"
                )
        self._state = JobState(model, optimizer, kept)
        self._file = CheckpointFile(os.fspath(checkpoint), save_every, {"seed": seed, "batch_size": batch_size})
        self._commit_every = commit_every
        self._last_commit = Commit()
        self._call: recovery.Call | None = None
        self._request = LeaveRequest()
        self._jobs = 0  # how many jobs `_enter` has entered
        self._steps_of_epoch = self._last_step = 1
        self._batch_is_open = self._in_step = self._stepped = False
        # Did the loss of a rank interrupt a job.step() after optimizer.step()? False again once this rank is in a new job.
        self._is_half_done = False
        self._may_leave = False
        self._notices = 0  # how many notices the engine had counted before the present step
        self._has_committed = False  # have the ranks made a commit in this call of `batches`?
        self._reset_callbacks: list[Callable[[], Any]] = []
        optimizer.register_step_pre_hook(self._before_optimizer)
        optimizer.register_step_post_hook(self._after_optimizer)
        self._has_state = RUNTIME.spare is None
        if not self._has_state:
            return  # this is a spare, and the ranks have begun: batches() gets their state
        self.position, source, problem = self._file.resume(self._state.load_all)
        if problem:
            raise InvalidArgumentError(problem)
        self._state.receive(source)

    # --- for the program ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The number of the epoch to which the present step (between two steps: the next step) belongs.

        It is known once the first batch has been taken from `batches`.
        """
        return self.position // self._steps_of_epoch

    @property
    def ends_epoch(self) -> bool:
        """Is the present step the last one of its epoch? If so, call ``step()`` of a scheduler that counts epochs."""
        return (self.position + 1) % self._steps_of_epoch == 0

    @property
    def committed(self) -> int:
        """The number of steps that no loss of a rank takes back.

        This is `position`, or with a sharded optimizer the position of the last commit.
        """
        return self._last_commit.position if self._state.is_sharded else self.position

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], Any]]) -> None:
        """Adds functions without arguments. They run after the ranks have changed, for example to set a learning rate."""
        self._reset_callbacks.extend(callbacks)

    def batches(self, dataset: Sized, epochs: int, *, shuffle: bool = True, **loader: Any) -> Iterator[Any]:
        """Yields this rank's shares of the batches, from the present position on. The iteration ends on all ranks together.

        Each batch must be used in one `step`. Every sample of an epoch is used in exactly one applied step. After the loss of a
        rank, batches that were loaded ahead are dropped.

        Args:
            dataset: an object with ``len()`` and ``[index]``, the same on all ranks.
            epochs: the number of epochs, counted from the beginning of the training.
            shuffle: does each epoch have an order of its own?
            **loader: arguments of `torch.utils.data.DataLoader`, such as ``num_workers`` and ``collate_fn``.

        Raises:
            InvalidArgumentError: a batch was taken and not used in a `step`, or `batches` is running already.
            PeerLostError, UnsupportedError: as for `step`.
        """
        if self._call is not None:
            raise InvalidArgumentError("batches() of an elastic.Job is running already")
        self._steps_of_epoch = max(1, -(-len(dataset) // self.batch_size))
        self._last_step = epochs * self._steps_of_epoch if len(dataset) else 0
        try:
            self._has_committed = False
            call = self._call = recovery.Call()
            if call.joined:
                self._enter(lambda: call.joined)
            self._commit_at_begin()
            with LeaveRequest() as self._request:
                while not self._has_ended():
                    for batch in self._of_one_epoch(dataset, shuffle, loader):
                        yield batch
                        if self._may_leave and self._request.asked:
                            self._save()  # if all ranks have to leave, only the file remains
                            leave_if_asked(f"after step {self.position}")
        except recovery.Passed:
            return
        finally:
            self._call = cast(Any, self.optimizer).weight = None  # the weight was that of the last batch

    @contextmanager
    def step(self) -> Iterator[StepOutcome]:
        """A with statement around one step: forward, backward and exactly one ``optimizer.step()`` (or none, with a scaler).

        This statement handles only the loss of ranks. All other exceptions reach the program.

        Raises:
            InvalidArgumentError: no batch was taken for this `step`; this `step` is inside of another one; or
                ``optimizer.step()`` is missing.
            PeerLostError: a rank was lost, and the job cannot continue without it.
            UnsupportedError: fewer ranks remain than HVDLITE_ELASTIC_MIN_RANKS, and no spare came.
        """
        if self._in_step or not self._batch_is_open:
            raise InvalidArgumentError("each job.step() takes one batch of job.batches(), and contains no other job.step()")
        outcome, position = StepOutcome(), self.position
        before = None if self._state.is_sharded else self._state.before_step()
        self._in_step, self._batch_is_open, self._stepped = True, False, False
        ended = False
        try:
            try:
                yield outcome
                if not self._stepped and self.scaler is None:
                    raise InvalidArgumentError("a job.step() ended without optimizer.step(): each has exactly one")
                ended = True
            finally:
                self.position += ended or self._stepped
            self._commit_if_due()
        except PeerLostError as loss:
            if before is not None and self.position == position:
                self._state.go_back(before)
            self._is_half_done = self._stepped and not ended
            self._recover(loss)
        finally:
            self._in_step = False
        outcome.applied = self.position > position
        save_every = self._file.save_every
        if outcome.applied and save_every and self.position % save_every == 0:
            self._save()

    # --- commits ------------------------------------------------------------------------------------------------------------

    def _tell_leave(self) -> None:
        """With a sharded optimizer: makes the next step tell the other ranks whether this rank has to leave.

        The notice travels with the weight of this rank's gradients. All ranks exchange their weights, so all ranks learn of the
        notice in the same step.
        """
        self._may_leave = not self._state.is_sharded
        if self._state.is_sharded:
            cast(Any, self.optimizer)._hvdlite.give_notice(self._request.asked)
            self._notices = RUNTIME.require().counters()["notices"]

    def _commit_if_due(self) -> None:
        """With a sharded optimizer: commits after a step if a commit is due, and always before a rank leaves."""
        if not self._state.is_sharded:
            return
        told = RUNTIME.require().counters()["notices"] > self._notices
        leaves = told or (self._request.asked and size() == 1)
        if is_commit_due(self.position, self._last_step, (self._commit_every, self._file.save_every), leaves):
            self._commit()
        if leaves:
            barrier()  # when one rank has ended the commit, others may still wait for that rank's part
            self._may_leave = True

    def _commit(self) -> None:
        """Makes a copy of the whole state on each rank. Collective."""
        self._last_commit = Commit(self._last_commit.number + 1, self.position, self._state.commit())
        self._has_committed = True

    def _save(self) -> None:
        """Writes the checkpoint, if this rank has to. With a sharded optimizer it writes the last commit, so commit first."""
        if self._file.is_mine():
            snapshot = self._last_commit.snapshot  # None if the optimizer is not sharded
            self._file.write(self.position, self._state.present() if snapshot is None else snapshot.states)

    def _commit_at_begin(self) -> None:
        """With a sharded optimizer: commits the state before the first step of `batches`, so that each rank has a commit."""
        while self._state.is_sharded and not self._has_committed:
            try:
                self._commit()
            except PeerLostError as loss:
                self._recover(loss)

    # --- batches ------------------------------------------------------------------------------------------------------------

    def _of_one_epoch(self, dataset: Sized, shuffle: bool, loader: dict[str, Any]) -> Iterator[Any]:
        """Yields the remaining batches of the present epoch, until the ranks change or a step is not applied."""
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
            self._tell_leave()
            self._batch_is_open = True
            yield batch
            if self._batch_is_open:
                raise InvalidArgumentError("a batch of job.batches() was not used: put its step into `with job.step():`")
            # `_admit_spare` is collective. If this rank has noticed a loss in the step, it must not call `_admit_spare`: other
            # ranks may have noticed the loss in their call of `_admit_spare`, and do not call it again after this step.
            if self._jobs == jobs:
                self._admit_spare()
            if self._jobs != jobs or self.position != position + 1:
                return

    def _has_ended(self) -> bool:
        """Have all ranks applied the last step? If this rank has applied it, the call is collective over all ranks."""
        while self.position >= self._last_step:
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
        """Adds a spare to the ranks if one is ready. Collective. Call it after a step."""
        call = self._call
        assert call is not None
        try:
            ready = call.spare_is_ready()
            if ready and self.committed != self.position:
                self._commit()
        except PeerLostError as loss:
            self._recover(loss)
        else:
            if ready:
                self._enter(lambda: call.admit(self._point))

    @property
    def _point(self) -> float | None:
        """The number of this rank's newest point; None if this rank has no state yet.

        A point is a state that all ranks can have after the loss of a rank (`hvdlite.elastic.steps`): a commit if the optimizer
        is sharded, otherwise the state after an applied step. If the loss of a rank has interrupted that step after
        ``optimizer.step()``, 0.5 is subtracted from the number, so that this rank copies the state of a rank that has completed
        the step, if there is one.
        """
        if not self._has_state:
            return None
        return self._last_commit.number if self._state.is_sharded else self.position - 0.5 * self._is_half_done

    def _enter(self, job: Callable[[], Sequence[float | None]]) -> None:
        """Enters a new job. The function `job` makes the new job, and returns the number of each rank's newest point."""
        try:
            points = job()
            self._jobs += 1
            self.optimizer.zero_grad()
            plan = plan_copy(points)
            self._go_on_from(plan)
            if self._is_half_done and plan.point % 1 and rank() == plan.source:
                text = (
                    "the loss of a rank has ended step %d after optimizer.step(): the rest of the step, such as "
                    "scheduler.step(), is left out"
                )
                logging.getLogger("hvdlite").warning(text, self.position)
            self._is_half_done = False
            for callback in self._reset_callbacks:
                callback()
        except PeerLostError as loss:
            self._recover(loss)

    def _recover(self, loss: PeerLostError) -> None:
        why, call = recovery.why_not(loss), self._call
        if why:
            at = f" The last checkpoint is in {self._file.path}" if self._file.path else ""
            logging.getLogger("hvdlite").error("elastic training cannot go on after step %d: %s.%s", self.position, why, at)
            raise loss
        assert call is not None
        self._enter(lambda: call.recover(loss, self._point))

    def _go_on_from(self, plan: CopyPlan) -> None:
        """Goes on from the point that the plan names.

        If the optimizer is sharded, ranks that have this point return to their last commit. After that, with any optimizer, the
        plan's receivers copy the state of the plan's source. If there are receivers, the call is collective over all ranks.
        """
        commit = self._last_commit
        if commit.snapshot is not None and rank() not in plan.receivers:
            self._state.go_back(commit.snapshot)
            self.position = commit.position
        if not plan.receivers:
            return
        present = self.position, self._has_committed
        position, has_committed = broadcast_object(present, plan.source, name="hvdlite.elastic.position")
        self._state.receive(plan.source)
        if rank() in plan.receivers:
            self.position, self._has_committed, self._has_state = position, has_committed, True
            if self._state.is_sharded and plan.point:
                self._last_commit = Commit(int(plan.point), position, self._state.commit(loaded=True))

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
