"""The codecs of csrc/kernels/codec.h, written in NumPy. Tests compare the engine's bits with them."""

import numpy as np

INT8, INT4, FP8 = 1, 2, 3
KINDS = {"int8": INT8, "int4": INT4, "fp8": FP8}
LARGEST = {INT8: np.float32(127), INT4: np.float32(7), FP8: np.float32(448)}
# The values of the non-negative E4M3 codes, from 0 to 448; the code after them is nan.
E4M3 = np.array([(1 + m / 8) * 2.0 ** (e - 7) if e else m / 8 * 2.0**-6 for e in range(16) for m in range(8)][:127])


def codes_of(scaled: np.ndarray, kind: int) -> np.ndarray:
    """The code of each scaled element, one byte each."""
    if kind == FP8:
        magnitude = np.abs(scaled).astype(np.float64)
        above = np.clip(np.searchsorted(E4M3, magnitude), 1, 126)
        low, high = magnitude - E4M3[above - 1], E4M3[above] - magnitude
        code = np.where((high < low) | ((high == low) & (above % 2 == 0)), above, above - 1)
        return (code | np.signbit(scaled) * 0x80).astype(np.uint8)
    return np.rint(scaled).astype(np.int8).view(np.uint8)


def values_of(codes: np.ndarray, kind: int) -> np.ndarray:
    if kind == FP8:
        magnitude = E4M3.astype(np.float32)[codes & 0x7F]
        return np.where(codes & 0x80, -magnitude, magnitude)
    if kind == INT4:
        return ((codes & 0xF).astype(np.int32) ^ 8).astype(np.float32) - 8
    return codes.view(np.int8).astype(np.float32)


def scale_of(largest: np.float32, kind: int) -> np.float32:
    scale = largest / LARGEST[kind]
    with np.errstate(over="ignore"):
        return scale if np.isfinite(scale * LARGEST[kind]) else np.nextafter(scale, np.float32(0))


def encoded(array: np.ndarray, kind: int, block: int) -> bytes:
    """The coded bytes of an array, in the format that csrc/kernels/codec.h defines."""
    run = b""
    for begin in range(0, array.size, block):
        piece = array[begin : begin + block]
        largest, scale = np.float32(np.max(np.abs(piece))), np.float32(0)
        codes = np.zeros(piece.size, np.uint8)
        if not np.isfinite(largest):
            scale = np.float32(np.nan)
        elif largest >= 2.0**-100:
            scale = scale_of(largest, kind)
            codes = codes_of(piece * (LARGEST[kind] / largest), kind)
        if kind == INT4:
            half = (piece.size + 1) // 2
            upper = np.append(codes[half:], np.zeros(piece.size % 2, np.uint8))
            codes = codes[:half] & 0xF | (upper << 4)
        run += scale.tobytes() + codes.tobytes()
    return run


def decoded(array: np.ndarray, kind: int, block: int) -> np.ndarray:
    """An array after it was coded and decoded."""
    result = np.zeros_like(array)
    for begin in range(0, array.size, block):
        piece = array[begin : begin + block]
        largest = np.float32(np.max(np.abs(piece)))
        if not np.isfinite(largest):
            result[begin : begin + block] = np.nan
        elif largest >= 2.0**-100:
            codes = codes_of(piece * (LARGEST[kind] / largest), kind)
            result[begin : begin + block] = values_of(codes, kind) * scale_of(largest, kind)
    return result


def reduced(contributed: list, kind: int, hosts=None, block=64, prescale=1.0, postscale=1.0, divisor=1) -> np.ndarray:
    """The result of a coded allreduce: the sum of each host, or each rank's value, is coded; the decoded sums are added in
    float32; and the total is coded once more.

    Args:
        contributed: each rank's array, or None for an absent rank.
        kind: the number of the codec.
        hosts: the host of each rank; None if each rank is coded alone.
        block: the number of elements that share a scale.
        prescale, postscale, divisor: the factors of the values and of the total, and the divisor of the total.
    """
    hosts = hosts or list(range(len(contributed)))
    values = [None if array is None else array.astype(np.float32) * np.float32(prescale) for array in contributed]
    given = next(array for array in contributed if array is not None)
    partials = []
    for host in dict.fromkeys(hosts):
        partial = np.zeros(given.size, np.float32)
        for rank, value in enumerate(values):
            if hosts[rank] == host and value is not None:
                partial = partial + value
        partials.append(decoded(partial, kind, block))
    total = partials[0]
    for partial in partials[1:]:
        total = total + partial
    return decoded(total * np.float32(postscale / divisor), kind, block).astype(given.dtype)
