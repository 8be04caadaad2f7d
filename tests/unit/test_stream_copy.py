"""Copies past the caches (csrc/kernels/stream.h)."""

import numpy as np

from hvdlite import _engine


def test_copies_past_the_caches():
    """Of any length from and to any alignment, and not a byte beside them."""
    draw = np.random.default_rng(3)
    source = draw.integers(0, 255, 1000, np.uint8)
    for _ in range(2000):
        begin, length, offset = (int(number) for number in draw.integers(0, (200, 600, 200)))
        target = np.full(1000, 0xA5, np.uint8)
        _engine.stream_copy(target.ctypes.data + offset, source.ctypes.data + begin, length)
        right = np.full(1000, 0xA5, np.uint8)
        right[offset : offset + length] = source[begin : begin + length]
        assert np.array_equal(target, right), (begin, length, offset)
