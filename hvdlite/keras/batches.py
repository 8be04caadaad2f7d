"""Counts batches in callbacks. With ``steps_per_execution`` above 1 Keras makes one call for several batches."""

from typing import Any

__all__ = ["BatchCount"]


class BatchCount:
    """Counts the batches of each epoch from the batch numbers that ``on_train_batch_end`` gets."""

    def __init__(self) -> None:
        self._last = -1

    def begin_epoch(self) -> None:
        """Starts an epoch: its first batch has number 0."""
        self._last = -1

    def since_last(self, batch: int, params: dict[str, Any]) -> int:
        """The number of batches that have ended since the last call, at least 1.

        Args:
            batch: number of the execution's last batch. If the last execution of an epoch has fewer batches than the others,
                Keras still gives the number that it would have with all of them.
            params: the callback's `params`. Its ``"steps"`` is the number of batches of the epoch, if that is known.

        """
        steps = params.get("steps")
        last = min(batch, steps - 1) if steps else batch
        count = max(1, last - self._last)
        self._last = last
        return count
