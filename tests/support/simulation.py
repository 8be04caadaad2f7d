"""Runs collectives over simulated ranks, with the checks that every test of a collective needs.

One thread steps the ranks' state machines in an order that a seed determines. Some completions are reported late, and a
deadlock is an error with the word "stuck" (tests/native/testing/simulate.cc). The functions check the guard bytes around
outputs, that inputs do not change, and that all ranks have the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from support.cases import Op, Reduction, assert_same_bits
from support.testing import native

from hvdlite import _engine, config, errors
from hvdlite.dtypes import DType, numpy_dtype

__all__ = [
    "ALLGATHER",
    "ALLREDUCE",
    "ALLTOALL",
    "BARRIER",
    "BROADCAST",
    "MIXED_ISA",
    "REAL_TILE",
    "REDUCESCATTER",
    "SEGMENT_BYTES",
    "TILES",
    "TILE_BYTES",
    "Buffer",
    "allreduce",
    "error_classes",
    "reducescatter",
    "run",
    "simulate",
]

# The kinds of csrc/base/types.h.
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER = range(6)
SEGMENT_BYTES = 64  # so small that some hundred elements need many rounds
TILE_BYTES = 256
# Tile sizes in bytes. With the smallest, only payloads in the flag's line take fewer steps. The second is odd, and the third
# allows all modes.
TILES = (256, 320, 4096)
REAL_TILE = config.from_environment({}).tile_bytes
STEP_KNOBS = {"dtype", "op", "prescale", "postscale", "divisor", "root", "parts"}
GUARD = 64
HIERARCHICAL = "hierarchical"  # this algorithm needs several hosts
MIXED_ISA = -1  # each rank has another instruction set; results must not depend on it


@pytest.fixture(scope="module", autouse=True)
def error_classes():
    """The engine raises the exceptions of the package."""
    errors.install(_engine.set_error_classes)


@dataclass
class Buffer:
    """An array between guard bytes."""

    memory: np.ndarray
    array: np.ndarray
    start: int  # where the array begins in the memory

    @classmethod
    def of(cls, count: int, dtype: DType, offset: int = 0) -> "Buffer":
        size = count * dtype.itemsize
        start = GUARD + offset
        memory = np.full(size + GUARD + start, 0xA5, dtype=np.uint8)
        return cls(memory, memory[start : start + size].view(numpy_dtype(dtype)), start)

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    def check_guards(self) -> None:
        outside = self.memory[: self.start].tobytes() + self.memory[self.start + self.array.nbytes :].tobytes()
        assert outside == b"\xa5" * len(outside), "bytes around a buffer were overwritten"


def run(kind: int, algorithm: str, inputs: Sequence[int], outputs: Sequence[int], counts: Sequence[int], **knobs) -> None:
    step = {name: knobs.pop(name) for name in list(knobs) if name in STEP_KNOBS}
    ranks = len(inputs) // step.get("parts", 1)
    simulate(ranks, [native.SimulatedStep(kind, algorithm, inputs, outputs, counts, **step)], **knobs)


def simulate(ranks: int, steps: Sequence[native.SimulatedStep], **knobs) -> None:
    if any(step.algorithm == HIERARCHICAL for step in steps):
        knobs = {"hosts": some_hosts(ranks)} | knobs
    native.simulate(ranks, steps, **({"segment_bytes": SEGMENT_BYTES, "tile_bytes": TILE_BYTES, "isa": MIXED_ISA} | knobs))


def some_hosts(ranks: int) -> list[int]:
    """The hosts of the ranks, of different sizes. From 6 ranks on, the ranks are dealt to the hosts in turn."""
    return [rank % 3 if ranks >= 6 else 2 * rank // ranks for rank in range(ranks)]


def divisor_of(reduction: Reduction, ranks: int) -> int:
    return ranks if reduction.op is Op.AVERAGE else 1


def allreduce(
    algorithm: str, inputs: Sequence[np.ndarray | None], reduction: Reduction, in_place: bool = False, **knobs
) -> list[np.ndarray]:
    """Runs an allreduce; checks guards, inputs, and that all ranks have the same bits. Returns each rank's result."""
    ranks = len(inputs)
    in_place = in_place or algorithm == "push"  # "push" works in the tensors' own memory
    count = next(array.size for array in inputs if array is not None)
    outputs = [Buffer.of(count, reduction.dtype) for _ in range(ranks)]
    before = [None if array is None else array.copy() for array in inputs]
    addresses = []
    for array, output in zip(inputs, outputs, strict=True):
        if array is not None and in_place:
            output.array[:] = array
            addresses.append(output.address)
        else:
            addresses.append(0 if array is None else array.ctypes.data)
    knobs = {"divisor": divisor_of(reduction, ranks)} | knobs
    run(
        ALLREDUCE,
        algorithm,
        addresses,
        [output.address for output in outputs],
        [count],
        dtype=reduction.dtype,
        op=reduction.op,
        **knobs,
    )
    for array, copy, output in zip(inputs, before, outputs, strict=True):
        output.check_guards()
        assert array is None or array.tobytes() == copy.tobytes(), "an input was changed"
    results = [output.array for output in outputs]
    assert_same_bits(results)
    return results


def reducescatter(
    algorithm: str, inputs: Sequence[np.ndarray | None], counts: Sequence[int], reduction: Reduction, **knobs
) -> np.ndarray:
    """Runs a reducescatter, and checks the guards and the inputs. Returns the ranks' results one after the other."""
    ranks = len(inputs)
    outputs = [Buffer.of(count, reduction.dtype) for count in counts]
    before = [None if array is None else array.copy() for array in inputs]
    run(
        REDUCESCATTER,
        algorithm,
        [0 if array is None else array.ctypes.data for array in inputs],
        [output.address for output in outputs],
        list(counts),
        dtype=reduction.dtype,
        op=reduction.op,
        **({"divisor": divisor_of(reduction, ranks)} | knobs),
    )
    for array, copy, output in zip(inputs, before, outputs, strict=True):
        output.check_guards()
        assert array is None or array.tobytes() == copy.tobytes(), "an input was changed"
    return np.concatenate([output.array for output in outputs])
