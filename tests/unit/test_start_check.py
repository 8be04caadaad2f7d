"""Digests of memory, what is made of arrays, and the modes."""

import types

import numpy as np
import pytest

from hvdlite import start_check
from hvdlite._engine import digest
from hvdlite.errors import InvalidArgumentError
from hvdlite.leaves import Leaf
from hvdlite.start_check import mode_of


def digest_of(array):
    return digest(array.ctypes.data, array.nbytes)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 63, 64, 65, 200])
def test_every_byte_counts(size):
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    found = {digest_of(content)}
    for place in range(size):
        other = content.copy()
        other[place] ^= 1
        found.add(digest_of(other))
    assert len(found) == size + 1


def test_size_and_order_count():
    zeros = [np.zeros(size, np.uint8) for size in range(1, 130)]
    assert len({digest_of(each) for each in zeros}) == len(zeros)
    words = np.arange(64, dtype=np.uint64)
    turned = [np.ascontiguousarray(np.roll(words, shift)) for shift in range(64)]
    assert len({digest_of(each) for each in turned}) == len(turned)


def test_it_does_not_depend_on_where_the_memory_lies():
    content = np.random.default_rng(3).integers(0, 256, 1000, np.uint8)
    found = set()
    for offset in range(9):
        memory = np.zeros(1100, np.uint8)
        memory[offset : offset + 1000] = content
        found.add(digest_of(memory[offset : offset + 1000]))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("array", "numbers", "epsilon"),
    [
        (np.array([[1.5, 2.0]], np.float32), [1.5, 2.0], 2.0**-23),
        (np.array([[1, 2], [3, 4]], np.int32).T, [1, 3, 2, 4], 0.0),
        (np.array([1 + 2j], np.complex64), [1, 2], 2.0**-23),
        (np.array(7.0), [7.0], 2.0**-52),
    ],
)
def test_arrays(array, numbers, epsilon):
    leaf = Leaf.of_array("x", array)
    assert leaf.shape == array.shape
    np.testing.assert_array_equal(leaf.numbers(slice(None)), numbers)
    assert leaf.epsilon == epsilon
    assert leaf.memory().tobytes() == array.tobytes()


def test_bfloat16_has_a_coarser_rounding():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    leaf = Leaf.of_array("x", np.array([1.0], ml_dtypes.bfloat16))
    assert leaf.epsilon == 2.0**-7
    assert leaf.numbers(slice(None)).tolist() == [1.0]


def test_modes(monkeypatch):
    knob = types.SimpleNamespace(start_check="auto", horovod_rules=False)
    monkeypatch.setattr(start_check, "RUNTIME", types.SimpleNamespace(config=knob))
    assert mode_of(None, "f") == "error"
    assert mode_of("off", "f") == "off"
    knob.horovod_rules = True
    assert mode_of(None, "f") == "warn"
    assert mode_of("error", "f") == "error"
    knob.start_check = "broadcast"
    assert mode_of(None, "f") == "broadcast"
    with pytest.raises(InvalidArgumentError, match=r"f\(start_check='auto'\): it is None or one of 'error', 'broadcast'"):
        mode_of("auto", "f")
