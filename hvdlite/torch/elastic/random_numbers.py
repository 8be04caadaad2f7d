"""Copies and restores the states of Python's and NumPy's global generators of random numbers.

An `ElasticJob` needs a copy at each step or commit, and `SeededSamples` whenever it loads samples. `random.getstate()` and
`np.random.get_state()` make an object for each of 624 numbers. This takes longer than all else that `ElasticJob` does for a
step. So a copy is made only if the generator's memory has changed since the last copy.
"""

import ctypes
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def _memory_of(value: object) -> bytes:
    """The memory of an object without its header, in which the references are counted."""
    header = object.__basicsize__
    return ctypes.string_at(id(value) + header, type(value).__basicsize__ - header)


class _LastCopy:
    """The last copy of a generator's state.

    Args:
        copied: makes a copy of the state.
        seen: returns a value that changes whenever the state changes. It returns None if there is no such value; in this case
            each call makes a new copy.
    """

    def __init__(self, copied: Callable[[], Any], seen: Callable[[], Sequence[Any] | None]) -> None:
        self._copied, self._seen = copied, seen
        self._when: Sequence[Any] | None = None  # what was seen just before the copy
        self._state: Any = None

    def __call__(self) -> Any:
        """A copy of the present state."""
        now = self._seen()
        if now is None or now != self._when:
            self._when, self._state = now, self._copied()
        return self._state


def _seen_of_python() -> Sequence[Any]:
    generator: Any = random.getstate.__self__  # type: ignore[attr-defined]
    return _memory_of(generator), generator.gauss_next


def _seen_of_numpy() -> Sequence[Any] | None:
    owner: Any = np.random.mtrand._rand
    generator = owner._bit_generator
    # An object of either type below has the state in its own memory. A program can choose another type, whose objects perhaps
    # have only a pointer to the state.
    if type(owner) is not np.random.RandomState or type(generator) is not np.random.MT19937:
        return None
    return _memory_of(owner), _memory_of(generator)


_python = _LastCopy(random.getstate, _seen_of_python)
_numpy = _LastCopy(np.random.get_state, _seen_of_numpy)


def copied_numbers() -> tuple[Any, Any]:
    """Copies of the states of Python's and of NumPy's generator. Do not change them: later calls may return the same copies."""
    return _python(), _numpy()


def restore_numbers(states: tuple[Any, Any]) -> None:
    """Gives both generators these states."""
    random.setstate(states[0])
    np.random.set_state(states[1])
