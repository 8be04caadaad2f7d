"""Counts batches in callbacks. With ``steps_per_execution`` above 1 Keras calls a callback once for several batches."""

from typing import Any


class BatchCount:
    """Counts the batches of each epoch from the batch numbers that ``on_train_batch_end`` gets."""

    def __init__(self) -> None:
        self._last = -1

    def begin_epoch(self) -> None:
        """Starts an epoch: its first batch has number 0."""
        self._last = -1

    def since_last(self, batch: int, params: dict[str, Any]) -> int:
        """The number of batches that have ended since the last call of this method, or since the epoch began; at least 1.

        Args:
            batch: number of the last batch of an execution, which is the ``steps_per_execution`` batches that Keras runs at
                once. If the last execution of an epoch has fewer batches, Keras gives the number as if it had all of them.
            params: the callback's `params`. ``params["steps"]`` is the number of batches of the epoch, if Keras knows it.

        """
        steps = params.get("steps")
        last = min(batch, steps - 1) if steps else batch
        count = max(1, last - self._last)
        self._last = last
        return count
