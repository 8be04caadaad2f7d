"""The training steps of elastic training: from which state the ranks go on after the loss of a rank, what they copy, and which
samples a rank gets.

A *point* is a state of the training that all ranks can have after the loss of a rank. Points are numbered, and each rank keeps
its newest one. What a point is depends on the optimizer:

- If every rank has the whole state, the state after each applied training step is a point, with the number of the step. Ranks
  apply the steps one after the other. No rank can apply a step to which some rank has not contributed its gradients.
- If the optimizer's state is sharded, a lost rank's part of the state is lost. So each commit is a point: a copy of the whole
  state on every rank. All ranks contribute to a commit, and no rank can apply another step before all have ended the commit.

So when a rank is lost, the newest points of the others differ by one at most. All ranks go on from the newest point that a
living rank has; ranks without this point, such as a spare that has become a rank, copy it.

The loss of a rank may interrupt another rank's step 8 after ``optimizer.step()``. Then the newest point of the interrupted rank
has the number 7.5, so this rank copies point 8 from a rank that has ended step 8. If no rank has ended step 8, all ranks copy
point 7.5 from the same rank.

This file has pure functions, without a framework or the engine. Tests simulate small jobs in which ranks are lost and leave at
any moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hvdlite.errors import InternalError
from hvdlite.partition import part_of


@dataclass(frozen=True)
class CopyPlan:
    """What the ranks of a new job copy before they continue.

    Attributes:
        point: the number of the point from which all ranks go on.
        source: the rank that sends its point to the receivers.
        receivers: the ranks that copy this point.
    """

    point: float
    source: int
    receivers: tuple[int, ...]


def plan_copy(points: Sequence[float | None]) -> CopyPlan:
    """The plan, the same on all ranks.

    Args:
        points: the number of each rank's newest point, such as 7.5 if the loss of another rank has interrupted step 8
            after ``optimizer.step()``; None for a rank that has no state yet.

    Raises:
        InternalError: the newest points of two ranks differ by more than one, or no rank has a state.

    >>> plan_copy([7, 8, 7])
    CopyPlan(point=8, source=1, receivers=(0, 2))
    >>> plan_copy([7.5, 8, 7]).receivers, plan_copy([7.5, 7.5, 7]).receivers
    ((0, 2), (1, 2))
    """
    known = [point for point in points if point is not None]
    newest = max(known, default=0)
    if not known or newest - min(known) > 1:
        raise InternalError(
            f"ranks of one job are at the points {list(points)} of a training; this is a bug of hvdlite, please report it"
        )
    source, whole = points.index(newest), newest % 1 == 0
    receivers = [rank for rank, point in enumerate(points) if rank != source and not (whole and point == newest)]
    return CopyPlan(newest, source, tuple(receivers))


def is_commit_due(position: int, last: int, every: Sequence[int], leaves: bool) -> bool:
    """Do the ranks commit after this step? The same on all ranks.

    Args:
        position: the number of applied training steps, this one included.
        last: the number of steps of the whole training.
        every: for each purpose of commits, the number of steps from one commit to the next; 0: this purpose needs none.
        leaves: does a rank leave after this step? Then the ranks commit first, so that the others take back no step.

    >>> [is_commit_due(position, 8, (3, 0), False) for position in (6, 7, 8)], is_commit_due(7, 8, (3, 0), True)
    ([True, False, True], True)
    """
    return leaves or position == last or any(each and position % each == 0 for each in every)


def share_of_batch(order: Sequence[int], number: int, batch_size: int, rank: int, size: int) -> tuple[list[int], int]:
    """This rank's samples of one batch, and how many of them count.

    The shares of all ranks together are the batch; their sizes differ by one sample at most. If there is no sample for a rank,
    it gets one that does not count.

    Args:
        order: the samples of the epoch, the same on all ranks.
        number: the number of the batch in the epoch.
        batch_size: the number of samples in a batch of the whole job.
        rank: this rank.
        size: the number of ranks.

    >>> share_of_batch(range(10), 1, 6, 0, 3), share_of_batch(range(10), 1, 6, 2, 3)
    (([6, 7], 2), ([9], 1))
    >>> share_of_batch(range(10), 1, 9, 1, 2)
    ([9], 0)
    """
    batch = order[number * batch_size : (number + 1) * batch_size]
    part = part_of(len(batch), size, rank)
    mine = list(batch[part.start : part.stop])
    return (mine, len(mine)) if mine else ([batch[0]], 0)
