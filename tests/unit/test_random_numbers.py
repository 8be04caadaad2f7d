"""Copies of the states of Python's and NumPy's generators: a copy is made again only if the state has changed."""

import random

import numpy as np
import pytest

from hvdlite.torch.elastic import random_numbers


def set_gauss(has_gauss, gauss):
    """Changes only the second number of a pair of Gauss's, which NumPy keeps beside the generator."""
    name, key, position, *_ = np.random.get_state()
    np.random.set_state((name, key, position, has_gauss, gauss))


CHANGES = {
    "random": random.random,
    "gauss": lambda: random.gauss(0, 1),
    "the other gauss": lambda: random.gauss(0, 1),
    "seed": lambda: random.seed(3),
    "NumPy's seed": lambda: np.random.seed(3),
    "rand": lambda: np.random.rand(2),
    "as many as there are in the state": lambda: np.random.rand(312),
    "normal": np.random.standard_normal,
    "the other normal": np.random.standard_normal,
    "binomial": lambda: np.random.binomial(10, 0.3),
    "shuffle": lambda: np.random.shuffle([1, 2, 3]),
    "a normal more": lambda: set_gauss(1, 0.5),
    "another normal": lambda: set_gauss(1, 0.25),
    "a normal less": lambda: set_gauss(0, 0.0),
}


@pytest.fixture(autouse=True)
def _states_kept():
    before = random.getstate(), np.random.get_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])


def present():
    return as_lists((random.getstate(), np.random.get_state()))


def as_lists(states):
    python, (name, key, *rest) = states
    return python, name, key.tolist(), rest


def test_a_copy_is_that_of_the_present_state_whatever_has_changed():
    for name, change in CHANGES.items():
        change()
        copied = random_numbers.copied_numbers()
        assert as_lists(copied) == present(), name
        again = random_numbers.copied_numbers()
        assert again[0] is copied[0], name
        assert again[1] is copied[1], name


def test_restored_states_are_as_before_and_need_no_other_copy_than_those_of_before():
    copied = random_numbers.copied_numbers()
    drawn = random.random(), np.random.rand()
    for change in CHANGES.values():
        change()
        random_numbers.restore_numbers(copied)
        assert as_lists(copied) == present()
        assert as_lists(random_numbers.copied_numbers()) == present()
        assert (random.random(), np.random.rand()) == drawn


def test_a_generator_that_is_not_known_is_copied_each_time(monkeypatch):
    monkeypatch.setattr(np.random, "MT19937", np.random.PCG64)  # so the present one is another one
    copied = random_numbers.copied_numbers()
    again = random_numbers.copied_numbers()
    assert as_lists(again) == as_lists(copied)
    assert again[1] is not copied[1]
