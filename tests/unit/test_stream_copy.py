"""Copies (csrc/kernels/stream.h): past the caches, and between places in memory where memcpy is slow."""

import numpy as np
import pytest
from support.thread_ranks import ALLREDUCE, engines

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


@pytest.mark.parametrize("ahead", [0, 1, 4, 16, 48, 63, 64, 4080])
def test_copies_wherever_the_arrays_are_in_their_pages(ahead):
    """The one that a rank makes which is alone; `ahead`: how much further on in its page the result is than the input."""
    page, most = 4096, 9000
    memory = np.full(11 * page, 0xA5, np.uint8)
    memory = memory[-memory.ctypes.data % page :][: 10 * page]
    with engines(1) as (rank,):
        for step, (begin, length) in enumerate([(0, 2047), (0, 2048), (3, 2049), (16, 4096), (61, 8191), (64, most)]):
            source = memory[begin:][:length]
            source[...] = np.random.default_rng(length).integers(0, 255, length)
            at = 4 * page + begin + ahead
            rank.start(ALLREDUCE, f"copy{step}", source, memory[at:][:length]).result()
            assert np.array_equal(memory[at : at + length], source), (begin, length)
            assert (memory[begin + length : at] == 0xA5).all()
            assert (memory[at + length :] == 0xA5).all()
            memory[...] = 0xA5
