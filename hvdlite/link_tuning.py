"""Predicts and measures the time of a training step with each method of reducing gradients: for ``hvdlite tune --link``.

``hvdlite tune --link`` starts ``python -m hvdlite.link_tuning`` on every rank. A measured training step sleeps instead of
computing. It treats random numbers as an optimizer treats gradients: it submits buckets of random numbers during the pretended
backward pass, and waits for all buckets. (For PowerSGD it multiplies matrices, and reduces after the backward pass.) So the
measurement shows the costs of the link, the engine and the codecs. It does not show how the engine and the codecs slow down a
computation on the same cores.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdlite import basics
from hvdlite.compression import Codec
from hvdlite.dtypes import DType
from hvdlite.errors import HvdliteError, InvalidArgumentError
from hvdlite.link_measurement import measure_link, slowest, start_allreduce
from hvdlite.process_sets import global_process_set
from hvdlite.runtime import RUNTIME
from hvdlite.tuning import link_model
from hvdlite.tuning.link_model import BF16, LOW_RANK_SIDE, POWERSGD, ExchangeMethod, Gradients

_ROUNDS = 5  # the most measured steps of each method
_GLOBAL = 0  # the id of the set of all ranks

Array = NDArray[Any]


class SimulatedSteps:
    """Training steps without a model. Collective over all ranks.

    Args:
        gradients: the number of elements of each bucket.
        compute: the seconds of a training step without communication.
        sleep: a function that sleeps for the given number of seconds.
    """

    def __init__(self, gradients: Gradients, compute: float, sleep: Callable[[float], None] = time.sleep) -> None:
        random = np.random.default_rng(RUNTIME.require_topology().rank)
        self._gradients = [random.standard_normal(size, np.float32) for size in gradients.buckets]
        self._compute = compute
        self._sleep = sleep

    def run(self, method: ExchangeMethod) -> float:
        """The seconds of a training step on this rank. If a reduction follows several backward passes: their mean seconds."""
        begun = time.perf_counter()
        for _ in range(method.passes - 1):
            self._sleep(self._compute)
        total = sum(values.size for values in self._gradients)
        self._sleep(self._compute * link_model.FORWARD)
        works = []
        for number, values in enumerate(self._gradients):
            self._sleep(self._compute * (1 - link_model.FORWARD) * values.size / total)
            if not method.one_bucket:
                works.append(self._start(method, number, values))
        if method.one_bucket:
            self._low_rank(total)
        for finish in works:
            finish()
        return (time.perf_counter() - begun) / method.passes

    def _start(self, method: ExchangeMethod, number: int, values: Array) -> Callable[[], object]:
        """Starts the reduction of a bucket; returns the function that waits for the reduction."""
        name = f"tune.{method.name}.{number}"
        if method is not BF16:
            codec = Codec(method.name) if method.codes else None
            return start_allreduce(values, name, DType.FLOAT32, codec=codec).result
        # NumPy has no bfloat16. So this copies the upper halves of float32 numbers, which moves as much memory as a conversion.
        halves = values.view(np.uint16)[int(sys.byteorder == "little") :: 2]
        short = np.ascontiguousarray(halves)
        work = start_allreduce(short, name, DType.BFLOAT16)

        def finish() -> None:
            work.result()
            halves[:] = short

        return finish

    def _low_rank(self, total: int) -> None:
        """The work of PowerSGD on square matrices that have `total` elements together: two allreduces, one after the other."""
        count = max(1, round(total / LOW_RANK_SIDE**2))
        matrix = np.resize(self._gradients[-1], (LOW_RANK_SIDE, LOW_RANK_SIDE))
        width = round((POWERSGD.element_bytes or 0) * LOW_RANK_SIDE / 8)
        q = np.ones((LOW_RANK_SIDE, width), np.float32)
        for side in "pq":
            factors = np.concatenate([(matrix if side == "p" else matrix.T) @ q for _ in range(count)])
            start_allreduce(factors, f"tune.powersgd.{side}", DType.FLOAT32).result()
            q, _ = np.linalg.qr(factors[:LOW_RANK_SIDE])
        for _ in range(count):
            matrix - q @ q.T


def _seconds_of_factoring() -> float:
    """The seconds of PowerSGD's matrix products for each element of a matrix, on this core."""
    matrix = np.ones((LOW_RANK_SIDE, LOW_RANK_SIDE), np.float32)
    q = np.ones((LOW_RANK_SIDE, 2), np.float32)
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        matrix - (matrix @ q) @ (matrix.T @ q).T
        times.append(time.perf_counter() - begun)
    return statistics.median(times) / matrix.size


def _measure(methods: Iterable[ExchangeMethod], steps: SimulatedSteps, seconds: float) -> dict[ExchangeMethod, float]:
    """The median seconds of a training step with each method, on the slowest rank.

    Each turn measures all methods once. There are at most six turns, and no further turn if it would probably end later than
    `seconds` after the start.
    """
    times: dict[ExchangeMethod, list[float]] = {method: [] for method in methods}
    begun = time.monotonic()
    for turn in range(_ROUNDS + 1):
        for method, own in times.items():
            own.append(slowest(steps.run(method), _GLOBAL))
        if slowest(time.monotonic() - begun, _GLOBAL) * (turn + 2) / (turn + 1) > seconds:
            break
    # In the first turn the engine allocates buffers and sees the names for the first time. So the first turn does not count if
    # there are other turns.
    return {method: statistics.median(own[1:] or own) for method, own in times.items()}


def _check_memory(parameters: int) -> None:
    """Raises InvalidArgumentError on all ranks if a host's memory is too small for its ranks' gradients. Collective."""
    needed = 4 * parameters * RUNTIME.require_topology().local_size
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if (share := slowest(needed / there, _GLOBAL)) > 1:
        raise InvalidArgumentError(
            f"--parameters {parameters}: the gradients of the measured steps take {4 * parameters / (1 << 30):.3g} GiB on each "
            f"rank, on one host {share:.3g} times its memory: give fewer parameters"
        )


def _report(parameters: int, compute: float, seconds: float) -> Iterator[str]:
    """Yields the lines to print, as soon as they are known. Collective."""
    _check_memory(parameters)
    link = measure_link(global_process_set)
    if link.hosts < 2:
        raise InvalidArgumentError(
            "there is no link to measure: all ranks are on one host, where codecs code nothing; name several hosts: -H a:1,b:1"
        )
    link = replace(link, factoring=slowest(_seconds_of_factoring(), _GLOBAL))
    config = RUNTIME.config
    gradients = Gradients(link_model.bucket_sizes(parameters, config.first_bucket_bytes, config.bucket_bytes))
    predicted = {method: link_model.step_seconds(link, method, gradients, compute) for method in link_model.ALL_METHODS}
    yield f"{RUNTIME.require_topology().size} ranks: {link_model.describe(link)}"
    yield f"a step: {parameters:,} parameters (float32), {1e3 * compute:g} ms without communication"
    measured = _measure(predicted, SimulatedSteps(gradients, compute), seconds)
    rows = [(method, predicted[method], measured[method]) for method in predicted]
    yield from ("", *link_model.table(rows), "", link_model.advice(measured, compute))


def main(words: list[str] | None = None) -> int:
    """The program; it runs on every rank. Returns the exit status."""
    parser = argparse.ArgumentParser("python -m hvdlite.link_tuning")
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--step-time", type=float, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args(words)
    try:
        basics.init()
        for line in _report(options.parameters, options.step_time, options.seconds):
            if RUNTIME.require_topology().rank == 0:
                print(line, flush=True)
    except HvdliteError as error:
        if RUNTIME.topology is None or RUNTIME.topology.rank == 0:  # before init has ended, no rank knows its number
            print(f"hvdlite tune: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
