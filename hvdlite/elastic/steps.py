"""The step protocol of elastic training: which rank has applied which step, what is copied, and which samples a rank gets.

Ranks apply steps one after the other. No rank can apply a step to which some rank has not contributed its gradients. So when
a rank is lost, the others differ by one step at most. A step counts if any living rank has applied it. A rank without
this step copies the state of one that has applied it. A spare that has become a rank copies the whole state. This file has pure
functions, without a framework or the engine. Tests simulate small jobs with deaths at any moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hvdlite.errors import InternalError
from hvdlite.partition import part_of

__all__ = ["CopyPlan", "plan_copy", "share_of_batch"]


@dataclass(frozen=True)
class CopyPlan:
    """What the ranks of a new job copy before they continue.

    Attributes:
        step: the number of applied steps that all ranks have afterwards.
        source: the rank whose state the others take.
        receivers: the ranks that take that state.
    """

    step: int
    source: int
    receivers: tuple[int, ...]


def plan_copy(steps: Sequence[int | None]) -> CopyPlan:
    """The plan, the same on all ranks.

    Args:
        steps: the number of steps that each rank has applied; None for one that has no state yet.

    Raises:
        InternalError: ranks differ by more than one step, or none has a state.

    >>> plan_copy([7, 8, 7])
    CopyPlan(step=8, source=1, receivers=(0, 2))
    """
    applied = [step for step in steps if step is not None]
    newest = max(applied, default=0)
    if not applied or newest - min(applied) > 1:
        raise InternalError(f"ranks of one job have applied {list(steps)} steps; this is a bug of hvdlite, please report it")
    return CopyPlan(newest, steps.index(newest), tuple(rank for rank, step in enumerate(steps) if step != newest))


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
