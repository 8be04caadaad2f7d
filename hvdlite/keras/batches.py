"""How many batches a call of a callback stands for: with ``steps_per_execution`` Keras makes one for several."""

from typing import Any

__all__ = ["BatchCount"]


class BatchCount:
    """Counts the batches of each epoch by the numbers that ``on_train_batch_end`` is called with."""

    def __init__(self) -> None:
        self._last = -1

    def begin_epoch(self) -> None:
        """The next batch is number 0."""
        self._last = -1

    def since_last(self, batch: int, params: dict[str, Any]) -> int:
        """The batches that have ended since the last call, at least one.

        Args:
            batch: number of the execution's last batch. Keras counts a last execution as if it were complete.
            params: the callback's, with the number of the epoch's batches where that is known.

        """
        steps = params.get("steps")
        last = min(batch, steps - 1) if steps else batch
        count = max(1, last - self._last)
        self._last = last
        return count
