"""A sampler that records which samples of the epoch are processed, and divides the others among the ranks."""

import random
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch.utils.data

from hvdlite.basics import rank, size
from hvdlite.errors import InvalidArgumentError

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Like torch's DistributedSampler, but it leaves out samples that were recorded as processed in this epoch.

    Every rank gets the same number of samples. If the samples do not divide evenly, some are used twice or more. Keep the
    sampler in a `TorchState`, call `record_batch` after each batch, and `set_epoch` at the *end* of each epoch.

    Args:
        dataset: an object with a length.
        shuffle: does each epoch have an order of its own, the same on all ranks?
        seed: the seed of the order, the same on all ranks.

    Attributes:
        epoch: the number of the present epoch.
        processed_num: the number of processed samples, on all ranks.
        processed_indices: the samples that this rank has recorded in this epoch; after a sync of the state, the samples that
            any rank has recorded.
        remaining_indices: the samples that were unprocessed when samples were last divided, in the order of the dataset.
        indices: this rank's share, in the order of the newest iteration, which is a loop over the sampler. The list is empty
            after samples were divided, until the next iteration begins.
        rank: this process's rank when samples were last divided.
        num_replicas: the number of ranks when samples were last divided.
        num_samples: the number of samples in a rank's share.
        total_size: the number of samples in all shares.

    Raises:
        NotInitializedError: `init` has not been called.

    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch, in which no sample is processed yet."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Records a batch of the present iteration as processed.

        Args:
            batch_idx: the number of the batch in this iteration.
            batch_size: the loader's batch size; the last batch may be smaller.

        Raises:
            InvalidArgumentError: the iteration has no such batch.

        """
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Iterable[int]) -> None:
        """Records samples, by their index in the dataset, as processed."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of a batch of the present iteration; arguments and errors are those of `record_batch`."""
        start = batch_idx * batch_size
        if not 0 <= start < len(self.indices):
            raise InvalidArgumentError(
                f"batch {batch_idx} of {batch_size} samples is not in this iteration of the ElasticSampler: this rank's share "
                f"has {len(self.indices)} samples (none until an iteration begins, and none after a reset)"
            )
        return self.indices[start : start + batch_size]

    def state_dict(self) -> dict[str, Any]:
        """The epoch and this rank's processed samples."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a `state_dict`, with the present ranks.

        Horovod's dict, which has only the number of processed samples, is accepted, too.

        Raises:
            InvalidArgumentError: `state_dict` is neither hvdlite's nor Horovod's.

        """
        if "epoch" not in state_dict or not {"processed_indices", "processed_num"} & state_dict.keys():
            raise InvalidArgumentError(
                "an ElasticSampler's state has 'epoch', and 'processed_indices' or Horovod's 'processed_num'; this one has "
                f"{list(state_dict)}"
            )
        self.epoch = state_dict["epoch"]
        processed = state_dict.get("processed_indices")
        if processed is None:
            processed = self._in_order(range(len(self.dataset)))[: state_dict["processed_num"]]
        self.processed_indices = set(processed)
        self.reset()

    def reset(self) -> None:
        """Divides unprocessed samples among the present ranks. The next iteration gives this rank's share."""
        self.rank, self.num_replicas = rank(), size()
        self._processed_before = len(self.processed_indices)
        self.remaining_indices = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.indices: list[int] = []

    def __iter__(self) -> Iterator[int]:
        """This rank's share."""
        order = self._in_order(self.remaining_indices)
        self.indices = [order[place % len(order)] for place in range(self.rank, self.total_size, self.num_replicas)]
        return iter(self.indices)

    def _in_order(self, indices: Iterable[int]) -> list[int]:
        order = list(indices)
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(order)
        return order

    @property
    def processed_num(self) -> int:
        """The number of processed samples on all ranks.

        The number is right only if all ranks have recorded equally many samples since samples were last divided.
        """
        return self._processed_before + (len(self.processed_indices) - self._processed_before) * self.num_replicas

    def __len__(self) -> int:
        """The number of samples in this rank's share."""
        return self.num_samples
