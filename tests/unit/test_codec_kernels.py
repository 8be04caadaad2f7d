"""The codecs' kernels: their formats against numpy's arithmetic, and every instruction set against that, bit for bit."""

import numpy as np
import pytest
from support.codecs import FP8, INT8, KINDS, LARGEST, decoded, encoded
from support.kernels import Placed, each_isa
from support.testing import native

ENCODE, DECODE, DECODE_ADD = range(3)
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
COUNTS = (0, 1, 2, 3, 7, 8, 9, 31, 63, 64, 65, 127, 128, 200, 255, 256, 257, 1000, 2049)


def values(count: int, seed: int = 0) -> np.ndarray:
    """Floats of many magnitudes, some of them zeros, a subnormal among them."""
    draw = np.random.default_rng(seed)
    array = (draw.standard_normal(count) * np.exp2(draw.integers(-12, 12, count))).astype(np.float32)
    array[::7] = 0
    array[3::11] = -0.0
    array[5::97] = 1e-40
    return array


def call(which: int, isa: int, kind: int, block: int, given: np.ndarray, out: np.ndarray, offset: int) -> np.ndarray:
    """One kernel at a misalignment; `out` is what the output holds before."""
    count = given.size if which == ENCODE else out.size
    source, target = Placed(given.view(np.uint8), offset), Placed(out.view(np.uint8), 3 * offset % 64)
    native.test_codec(which, isa, kind, target.values.ctypes.data, source.values.ctypes.data, count, block)
    assert target.guards_intact()
    return target.values.copy().view(out.dtype)


@each_isa
@each_kind
def test_format_and_values(kind, isa):
    for number, count in enumerate(COUNTS):
        for block in (64, 256):
            array = values(count, number)
            run = np.zeros(native.encoded_bytes(kind, count, block), np.uint8)
            run = call(ENCODE, isa, kind, block, array, run, number % 5)
            assert run.tobytes() == encoded(array, kind, block), f"{count} in blocks of {block}"
            back = call(DECODE, isa, kind, block, run, np.zeros(count, np.float32), number % 5)
            assert back.tobytes() == decoded(array, kind, block).tobytes()
            base = values(count, number + 100)
            added = call(DECODE_ADD, isa, kind, block, run, base, number % 5)
            assert added.tobytes() == (base + back).tobytes()


@each_isa
@each_kind
@pytest.mark.parametrize("poison", [np.inf, -np.inf, np.nan], ids=str)
def test_a_block_with_a_value_that_is_not_finite_is_nan_as_a_whole(kind, isa, poison):
    array = values(300, 1)
    array[140] = poison
    run = call(ENCODE, isa, kind, 128, array, np.zeros(native.encoded_bytes(kind, 300, 128), np.uint8), 1)
    back = call(DECODE, isa, kind, 128, run, np.zeros(300, np.float32), 1)
    assert np.isnan(back).tolist() == [128 <= place < 256 for place in range(300)]
    added = call(DECODE_ADD, isa, kind, 128, run, array, 1)
    assert set(added[128:256].view(np.uint32).tolist()) == {0x7FC00000}


@each_isa
@each_kind
def test_ties_go_to_even_and_tiny_blocks_are_zero(kind, isa):
    """The largest element makes the factor 1, so the others are ties as they are."""
    steps = np.arange(-6, 7, dtype=np.float32) / 2
    array = np.append(LARGEST[kind], steps if kind != FP8 else steps * 2.0**-9 + np.float32(0))
    run = call(ENCODE, isa, kind, 64, array, np.zeros(native.encoded_bytes(kind, array.size, 64), np.uint8), 0)
    back = call(DECODE, isa, kind, 64, run, np.zeros(array.size, np.float32), 0)
    assert back[1:].tolist() == [float(np.rint(step)) * (2.0**-9 if kind == FP8 else 1) for step in steps]
    for largest, is_kept in ((2.0**-100, True), (np.nextafter(np.float32(2.0**-100), np.float32(0)), False)):
        tiny = np.array([largest, 0, -largest], np.float32)
        run = call(ENCODE, isa, kind, 64, tiny, np.zeros(native.encoded_bytes(kind, 3, 64), np.uint8), 0)
        assert any(run.tolist()) is is_kept


@each_isa
@each_kind
def test_the_largest_float_stays_finite(kind, isa):
    array = values(64, 2)
    array[20] = -np.finfo(np.float32).max
    run = call(ENCODE, isa, kind, 64, array, np.zeros(native.encoded_bytes(kind, 64, 64), np.uint8), 0)
    assert run.tobytes() == encoded(array, kind, 64)
    back = call(DECODE, isa, kind, 64, run, np.zeros(64, np.float32), 0)
    assert np.isfinite(back).all()
    assert back[20] == pytest.approx(array[20], rel=1e-6)


@each_kind
def test_errors_stay_below_half_a_step(kind):
    array = values(4096, 5)
    back = decoded(array, kind, 256)
    for begin in range(0, 4096, 256):
        piece = array[begin : begin + 256]
        largest = np.max(np.abs(piece))
        step = largest / 14 if kind != INT8 else largest / 254
        assert np.max(np.abs(back[begin : begin + 256] - piece)) <= step * 1.0001
