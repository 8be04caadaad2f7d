"""A dataset that seeds the random generators for each sample, so that a sample does not depend on the rank that loads it."""

import random
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.utils.data

from hvdlite.torch.elastic.random_numbers import copied_numbers, restore_numbers


class SeededSamples(torch.utils.data.Dataset[Any]):
    """Loads the samples of another dataset. A sample's random numbers depend on the seed, the epoch and the sample's index.

    These numbers do not depend on the rank that loads the sample, if they come from the global generators of torch on the CPU,
    of Python's `random` or of NumPy (``np.random.rand`` and the like). After a sample or a batch is loaded, these generators
    have the same state as before. Other generators are neither seeded nor restored: those of GPUs, and those that the dataset
    has made itself, such as ``np.random.default_rng()``.
    """

    def __init__(self, dataset: Any, seed: int, epoch: int) -> None:
        self._dataset, self._seed, self._epoch = dataset, seed, epoch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        with _random_numbers_kept():
            return self._load(index)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples of a batch. `torch.utils.data.DataLoader` calls this method if a dataset has it."""
        with _random_numbers_kept():
            return [self._load(index) for index in indices]

    def _load(self, index: int) -> Any:
        number = zlib.crc32(f"{self._seed} {self._epoch} {index}".encode())
        # torch.manual_seed would also seed the GPUs, and is slow: it formats its caller's stack for each kind of GPU.
        torch.default_generator.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        return self._dataset[index]


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    before, others = torch.get_rng_state(), copied_numbers()
    try:
        yield
    finally:
        torch.set_rng_state(before)
        restore_numbers(others)
