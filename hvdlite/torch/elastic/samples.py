"""Samples whose random numbers do not depend on the rank that loads them."""

import random
from typing import Any

import numpy as np
import torch
import torch.utils.data

__all__ = ["SeededSamples"]


class SeededSamples(torch.utils.data.Dataset[Any]):
    """Samples whose random numbers depend on the seed, the epoch and the index, and not on the rank that loads them."""

    def __init__(self, dataset: Any, seed: int, epoch: int) -> None:
        self._dataset, self._seed, self._epoch = dataset, seed, epoch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()
        number = random.Random(f"{self._seed} {self._epoch} {index}").getrandbits(32)
        torch.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        try:
            return self._dataset[index]
        finally:
            torch.set_rng_state(before[0])
            random.setstate(before[1])
            np.random.set_state(before[2])
