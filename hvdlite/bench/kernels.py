"""`python -m hvdlite.bench kernels`: measures the kernels that pack tensors and unpack them, and the driver's copy.

Everything is measured in one process, on one GPU. Before a kernel is timed, its results are checked. A rate counts the bytes
that are read and those that are written, and the driver's copy moves as many bytes as the kernel. A launch has two times:
``alone``, of a single launch, and ``row``, of one of many launches in a row, each of which is submitted while the previous
launch runs.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hvdlite.bench import report
from hvdlite.bench.fusion import Fusion, Move, Times
from hvdlite.bench.tables import markdown
from hvdlite.bench.team import WrongSum
from hvdlite.config import from_environment
from hvdlite.dtypes import DType


@dataclass(frozen=True)
class _Case:
    source: DType  # the tensors' dtype
    target: DType  # the buffer's dtype
    factor: float
    shift: int = 0  # the number of elements by which tensors are moved from an aligned place in the buffer


CASES = {
    "copy": _Case(DType.FLOAT32, DType.FLOAT32, 1.0),
    "scale": _Case(DType.FLOAT32, DType.FLOAT32, 0.5),
    "float16": _Case(DType.FLOAT32, DType.FLOAT16, 0.5),
    "bfloat16": _Case(DType.FLOAT32, DType.BFLOAT16, 0.5),
    "shifted": _Case(DType.FLOAT32, DType.FLOAT32, 0.5, shift=1),
    "int32": _Case(DType.INT32, DType.INT32, 2.0),
    "int8": _Case(DType.INT8, DType.INT8, 2.0),
}
DEFAULT_CASES = ("copy", "scale", "float16", "bfloat16")
DEFAULT_SIZES = tuple(1 << power for power in range(10, 29, 2))

_ALIGN = 64  # elements: each tensor begins at a multiple of this in the buffer
_SPREAD = 256 << 20  # bytes: consecutive launches use different memory up to this size, so that no cache holds the data
_MOST_SETS = 64

# The targets of docs/gpu.md.
_LARGE = 1_000_000  # a tensor with at least this number of bytes is large
_LEAST_PERCENT = 85.0  # the smallest rate for large tensors, in percent of the copy's rate
_SMALL = 8 << 10  # a tensor with at most this number of bytes is small
_MANY = 160
_LONGEST = 10e-6  # the largest time in seconds to pack _MANY small tensors


def run(options: argparse.Namespace) -> list[report.Record]:
    """Measures with the options of the command ``kernels``, and returns the records.

    Raises:
        UnsupportedError: there is no GPU, or no kernels for the GPU.
        WrongSum: a kernel's result is wrong.
    """
    shapes = [(size, number) for size in options.sizes for number in options.tensors if number * 4 <= size]
    fusion = Fusion(from_environment(), options.gpu)
    try:
        records: list[report.Record] = [{"record": "gpu", "gpu": fusion.gpu, "kernels": fusion.origin}]
        settings = [_Setting(fusion, case, *shape) for shape in shapes for case in options.cases]
        space = max((setting.space for setting in settings), default=0)
        tensors, buffer = fusion.memory(space), fusion.memory(space)
        for setting in settings:
            setting.place(tensors, buffer)
            records += _measure(setting, options)
        return records
    finally:
        fusion.close()


class _Setting:
    """One case with tensors of one size. There are several sets of such tensors, which together are larger than the caches."""

    def __init__(self, fusion: Fusion, name: str, size: int, number: int) -> None:
        self.fusion, self.name, self.case, self.size, self.number = fusion, name, CASES[name], size, number
        wide = self.case.source.itemsize  # the buffer's elements have at most as many bytes
        self.count = size // wide // number
        self.aligned = math.ceil(self.count / _ALIGN) * _ALIGN
        self.elements = self.aligned * number
        self.stride = wide * self.elements
        self.sets = max(1, min(_MOST_SETS, _SPREAD // (2 * self.stride)))
        self.moved = (wide + self.case.target.itemsize) * self.count * number
        self.tensors = self.buffer = 0

    @property
    def space(self) -> int:
        """The bytes that the tensors of all sets need. The buffers of all sets need as many."""
        return self.stride * self.sets + self.case.shift * self.case.target.itemsize

    def place(self, tensors: int, buffer: int) -> None:
        """Uses the memory at these addresses."""
        self.tensors, self.buffer = tensors, buffer + self.case.shift * self.case.target.itemsize

    def move(self, unpack: bool) -> Move:
        """The launch that packs, or unpacks."""
        tensor, wire = self.case.source, self.case.target
        source, target = (wire, tensor) if unpack else (tensor, wire)
        return Move(
            [self.tensors + tensor.itemsize * self.aligned * i for i in range(self.number)],
            [(self.aligned * i, self.count) for i in range(self.number)],
            self.buffer,
            source,
            target,
            unpack,
            1 / self.case.factor if unpack else self.case.factor,
            sets=self.sets,
            tensor_stride=self.stride,
            buffer_stride=self.stride,
        )

    def check(self) -> None:
        """Packs and unpacks small whole numbers, and compares the results with the numbers.

        Raises:
            WrongSum: a result differs.
        """
        wanted = np.resize(np.arange(1, 60), self.elements).astype(self.case.source.name.lower())
        self._write(wanted)
        self.fusion.run(self.move(False))
        self._write(np.zeros_like(wanted))
        self.fusion.run(self.move(True))
        found = np.empty_like(wanted)
        self.fusion.copy(found.ctypes.data, self.tensors, found.nbytes)
        theirs, ours = (values.reshape(self.number, -1)[:, : self.count] for values in (wanted, found))
        if not np.array_equal(theirs, ours):
            raise WrongSum(f"the fusion kernels of the case {self.name} give wrong results")

    def _write(self, values: npt.NDArray[Any]) -> None:
        self.fusion.copy(self.tensors, values.ctypes.data, values.nbytes)

    def launch(self, unpack: bool) -> Callable[[int], Times]:
        """A function that makes a number of launches in a row and returns the times of one launch."""
        move = self.move(unpack)
        return lambda launches: self.fusion.run(move, launches)

    def copy(self, launches: int) -> Times:
        """Copies with the driver's function as many bytes as the kernel moves, and returns the times of one copy."""
        return self.fusion.copy(self.buffer, self.tensors, self.moved // 2, launches, self.sets, self.stride)


def _measure(setting: _Setting, options: argparse.Namespace) -> Iterator[report.Record]:
    setting.check()
    ceiling = _times(options, setting.copy)
    for way in ("pack", "unpack"):
        times = _times(options, setting.launch(way == "unpack"))
        yield {
            "record": "kernel",
            "case": setting.name,
            "way": way,
            "bytes": setting.size,
            "tensors": setting.number,
            "moved": setting.moved,
            **times,
            **{f"copy_{name}": value for name, value in ceiling.items()},
            "rate": setting.moved / times["row"] if times["row"] else 0.0,
            "percent_of_copy": 100 * ceiling["row"] / times["row"] if times["row"] else 0.0,
        }


def _times(options: argparse.Namespace, launch: Callable[[int], Times]) -> dict[str, float]:
    """The median times in seconds: ``row``, of one launch in a row; ``alone``, of a single launch; ``host``, in which the host
    submits one launch in a row. There are four times as many single launches as rows.
    """
    launch(2)
    rows = [launch(options.launches) for _ in range(options.repeats)]
    alone = [launch(1) for _ in range(4 * options.repeats)]
    return {
        "row": statistics.median(times.gpu for times in rows),
        "alone": statistics.median(times.gpu for times in alone),
        "host": statistics.median(times.host for times in rows),
    }


def table(records: Sequence[report.Record]) -> str:
    """The measurements as a table in markdown, after a line with the GPU and the kernels."""
    header = ("case", "way", "size", "tensors", "in a row", "alone", "host", "TB/s", "driver's copy", "% of it")
    rows = []
    for record in records:
        if record["record"] == "kernel":
            times = [report.format_seconds(record[name]) for name in ("row", "alone", "host")]
            cells = [record["case"], record["way"], report.format_bytes(record["bytes"]), str(record["tensors"]), *times]
            rate = report.three_digits(record["rate"] / 1e12)
            rows.append([*cells, rate, report.format_seconds(record["copy_row"]), f"{record['percent_of_copy']:.0f}"])
    where = [f"{record['gpu']}; kernels {record['kernels']}." for record in records if record["record"] == "gpu"]
    return "\n\n".join([*where, markdown(header, rows)])


def missed(records: Sequence[report.Record]) -> list[str]:
    """One line for each measurement that misses its target, and for each target without a measurement."""
    lines = []
    large = small = 0
    for record in records:
        if record["record"] != "kernel":
            continue
        each = record["bytes"] / record["tensors"]
        what = f"{record['way']} of {record['tensors']} x {report.format_bytes(int(each))}, {record['case']}"
        if each >= _LARGE:
            large += 1
            if record["percent_of_copy"] < _LEAST_PERCENT:
                lines.append(f"{what}: {record['percent_of_copy']:.0f} % of the copy's rate, not {_LEAST_PERCENT:.0f}")
        elif record["tensors"] == _MANY and each <= _SMALL and record["way"] == "pack":
            small += 1
            if record["row"] > _LONGEST:
                times = [report.format_seconds(seconds) for seconds in (record["row"], _LONGEST)]
                lines.append(f"{what}: {times[0]}, not {times[1]}")
    untold = [what for what, number in (("tensors of 1 MB or more", large), (f"{_MANY} small tensors", small)) if not number]
    return [*lines, *(f"{what}: not measured" for what in untold)]
