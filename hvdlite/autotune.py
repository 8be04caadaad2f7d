"""Finds values of knobs that suit the machine, by measurements on the ranks of a job: for ``hvdlite tune``, and in `init` with
``HVDLITE_AUTOTUNE``.

In this file *settings* are values for some knobs. Each combination of settings gets an engine of its own over the job's
communicator. So one job can measure two combinations in turn, and can try every knob, even those that an engine reads only when
the engine is made. One engine sleeps while the other is measured. All ranks use the times of the slowest rank and rank 0's
clock, so all reach the same result.

``python -m hvdlite.autotune`` is what ``hvdlite tune`` starts on every rank.
"""

import argparse
import hashlib
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdlite import config, gpu, startup
from hvdlite._native import load_native, shim_path
from hvdlite.config import Config
from hvdlite.dtypes import DType
from hvdlite.errors import HvdliteError, InternalError, InvalidArgumentError
from hvdlite.requests import Average, Kind, Request
from hvdlite.torchrun import join_job
from hvdlite.tuning import files
from hvdlite.tuning.parameters import TUNABLE, parameters
from hvdlite.tuning.place import JobPlace
from hvdlite.tuning.report import Report, changes, format_settings, to_csv, to_evidence, to_text
from hvdlite.tuning.search import Rules, Settings, Value, search

Array = NDArray[np.float32]

_KIB = 1 << 10
# The bytes of an allreduce, and the number of such allreduces that are timed together.
_SINGLE = ((_KIB, 30), (64 * _KIB, 10), (1024 * _KIB, 4), (4096 * _KIB, 2))
# The bytes of tensors that are in flight together, similar to a model's gradients: 16 MiB in all.
_GRADIENTS = tuple(size * _KIB for size in (1, 4, 64, 256, 1024)) * 12
CASES = (
    *("allreduce of 1 KiB", "of 64 KiB", "of 1 MiB", "of 4 MiB"),
    f"of {len(_GRADIENTS)} gradients with 16 MiB (float32, host memory)",
)
_KEPT = 2  # engines at a time: one for each of the two settings that are compared


def _slowest(comm: Any, times: Sequence[float]) -> list[float]:
    """The largest value of all ranks, place by place."""
    from mpi4py import MPI

    mine = np.array(times)
    largest = np.empty_like(mine)
    comm.Allreduce(mine, largest, op=MPI.MAX)
    return [float(value) for value in largest]


class Engines:
    """The engines, by their settings: made on demand. The two that were used last are kept. Every method is collective.

    Args:
        comm: the mpi4py communicator of the ranks that measure.
        knobs: the values of all knobs; settings replace some of them.
    """

    def __init__(self, comm: Any, knobs: Config) -> None:
        self._comm = comm
        self._shim = shim_path()
        # Nobody would read the log lines of each of these engines.
        self._knobs = knobs.replace(log_level="error")
        self._engines: dict[tuple[tuple[str, Value], ...], Any] = {}
        random = np.random.default_rng(comm.rank)
        sizes = (*(nbytes for nbytes, _ in _SINGLE), *_GRADIENTS)
        self._arrays = [random.random(nbytes // 4, dtype=np.float32) for nbytes in sizes]
        self._requests = [_average(f"tune.{number}", array) for number, array in enumerate(self._arrays)]
        self._originals = [array.copy() for array in self._arrays]

    def get(self, settings: Settings) -> Any:
        """The engine with these settings."""
        from mpi4py import MPI

        key = tuple(sorted(settings.items()))
        engine = self._engines.pop(key, None)
        if engine is None:
            while len(self._engines) >= _KEPT:
                self._engines.pop(next(iter(self._engines))).shutdown()
            knobs = config.to_native(gpu.resolve(self._knobs.replace(**settings)))
            engine = load_native().Engine.create_mpi(self._shim, MPI._addressof(self._comm), knobs)
        self._engines[key] = engine  # at the end: it was used last
        return engine

    def close(self) -> None:
        """Shuts all engines down."""
        for engine in self._engines.values():
            engine.shutdown()
        self._engines.clear()

    def sample(self, settings: Settings) -> list[float]:
        """The seconds of each of CASES, on the slowest rank."""
        engine = self.get(settings)
        times = []
        for request, (_, calls) in zip(self._requests, _SINGLE, strict=False):
            self._comm.Barrier()
            begun = time.perf_counter()
            for _ in range(calls):
                engine.submit((request,), wake=False).result()
            times.append(time.perf_counter() - begun)
        self._comm.Barrier()
        begun = time.perf_counter()
        engine.submit(self._requests[len(_SINGLE) :], wake=False).wait()
        times.append(time.perf_counter() - begun)
        return _slowest(self._comm, times)

    def fingerprint(self, settings: Settings) -> str:
        """A hash of the bits of some averages with these settings, by rank 0. Their inputs are the same with all settings."""
        engine = self.get(settings)
        digest = hashlib.blake2b()
        for array, original, request in zip(self._arrays, self._originals, self._requests, strict=True):
            array[:] = original
            engine.submit((request,), wake=False).result()  # one after the other: otherwise timing decides what is fused
            digest.update(array.data)
        return str(self._comm.bcast(digest.hexdigest()))


def _average(name: str, array: Array) -> Request:
    address = array.ctypes.data
    return Request(Kind.ALLREDUCE, name, int(DType.FLOAT32), array.shape, address, address, op=Average)


def tune(comm: Any, place: JobPlace, knobs: Config, seconds: float, any_bits: bool = False) -> Report:
    """Searches good settings for this job. Collective, with the same result on all ranks.

    Args:
        comm: the mpi4py communicator of the ranks that measure.
        place: the machine and the shape of the job.
        knobs: the values of all knobs; the search does not change a knob that an environment variable sets.
        seconds: the approximate duration of the search.
        any_bits: may the search choose settings that change the last bits of sums?

    Raises:
        InvalidArgumentError: there is nothing to tune.
        InternalError: settings that must not change the bits of sums have changed them.
    """
    searched, left_out = parameters(place.shape(), knobs, any_bits)
    if not searched:
        chosen = sorted(variable for name, variable in knobs.origins.items() if name in TUNABLE)
        why = f"variables set all that may be tuned ({', '.join(chosen)})"
        why = "one rank alone exchanges nothing" if place.shape().ranks < 2 else why
        kept = f"; --any-bits would also try {', '.join(left_out)}" if left_out else ""
        raise InvalidArgumentError(f"there is nothing to tune: {why}{kept}")
    defaults = {parameter.name: knobs.values[parameter.name] for parameter in searched}
    engines = Engines(comm, knobs)
    bits: dict[str, str] = {}
    (load,) = _slowest(comm, [os.getloadavg()[0] / (os.cpu_count() or 1)])
    begun = time.monotonic()

    def passed() -> float:
        return float(comm.bcast(time.monotonic() - begun))

    def sample(settings: Settings) -> tuple[Sequence[float], float]:
        name = str(sorted(settings.items()))
        if name not in bits:
            bits[name] = engines.fingerprint(settings)
            if not any_bits and bits[name] != next(iter(bits.values())):
                raise InternalError(
                    f"with {format_settings(changes(settings, defaults))} sums have other bits than with the defaults, which "
                    "these settings should not change; please report this with the output of `hvdlite doctor`"
                )
        return engines.sample(settings), passed()

    try:
        outcome = search(searched, defaults, Rules(warm_up=knobs.autotune_warmup_samples), sample, seconds)
    finally:
        engines.close()
    same = len({bits[str(sorted(settings.items()))] for settings in (outcome.defaults, outcome.chosen)}) == 1
    return Report(place, outcome, CASES, left_out, same, passed(), load)


# --- at init ------------------------------------------------------------------------------------------------------------


def at_init(comm: Any, knobs: Config, logger: logging.Logger) -> Config:
    """The knobs with the values of the tuning file; without a file for this job, with measured ones if HVDLITE_AUTOTUNE is set.

    Collective. Writes measured values to the tuning file, unless there is a file already.

    Raises:
        InvalidArgumentError: (on all ranks) the file does not have the form that `hvdlite tune` writes, or cannot be found.
        InternalError: as for `tune`.
    """
    name = knobs.tuning_file or ("auto" if knobs.autotune else "")
    if not name or comm.size < 2:
        return knobs
    place = startup.place_of(comm, knobs)
    # An environment variable may be set on some ranks only, if its value is the default, which the other ranks have.
    origins = {name: variable for other in comm.allgather(dict(knobs.origins)) for name, variable in other.items()}
    found = _from_file(comm, name, place, knobs.autotune, logger)
    if found is None and knobs.autotune:
        found = _measured(comm, name, place, Config(knobs.values, origins), logger)
    return knobs.replace(**{name: value for name, value in (found or {}).items() if name not in origins})


def _from_file(comm: Any, name: str, place: JobPlace, may_lack: bool, logger: logging.Logger) -> dict[str, Value] | None:
    """The values in rank 0's tuning file; None if there is no file for this job."""
    settings: dict[str, Value] | None = None
    problem = ""
    if comm.rank == 0:
        try:
            settings = _read(name, place, may_lack, logger)
        except InvalidArgumentError as error:
            problem = str(error)
    settings, problem = comm.bcast((settings, problem))
    if problem:
        raise InvalidArgumentError(f"hvdlite could not be initialized: {problem}")
    return settings


def _read(name: str, place: JobPlace, may_lack: bool, logger: logging.Logger) -> dict[str, Value] | None:
    path = _path_of(name, place)
    if not os.path.exists(path) and (may_lack or name == "auto"):
        if not may_lack:
            logger.warning("there is no tuning for this machine and a job of this shape (%s): `hvdlite tune` makes one", path)
        return None
    key, settings = files.load(path)
    if different := files.differences(key, place):
        logger.warning("the tuning in %s is for another job and is not taken: %s", path, "; ".join(different))
        return None
    logger.info("the tuning in %s says: %s", path, format_settings(settings) or "all as by default")
    return settings


def _measured(comm: Any, name: str, place: JobPlace, knobs: Config, logger: logging.Logger) -> dict[str, Value]:
    first = comm.rank == 0
    if first:
        logger.warning(
            "HVDLITE_AUTOTUNE: measuring which knobs suit this machine, for up to %g s", 1.5 * knobs.autotune_seconds
        )
    try:
        report = tune(comm, place, knobs, knobs.autotune_seconds)
    except InvalidArgumentError as error:  # on all ranks
        if first:
            logger.warning("HVDLITE_AUTOTUNE: %s", error)
        return {}
    if first:
        found = format_settings(report.settings) or "nothing is better than the defaults"
        logger.warning("HVDLITE_AUTOTUNE: %s", "; ".join(filter(None, [found, report.busy])))
        problem = _problem_of(lambda: _keep(name, report, knobs.autotune_log, logger))
        if problem:  # it does not end this job
            logger.warning("HVDLITE_AUTOTUNE: %s", problem)
    return report.settings


def _keep(name: str, report: Report, log: str, logger: logging.Logger) -> None:
    """Writes the file for the next job, unless there is one."""
    path = _path_of(name, report.place)
    if path.exists():
        logger.warning("HVDLITE_AUTOTUNE: the measured values are not written: %s is a file for another job", path)
    else:
        files.save(path, report.place, report.settings, to_evidence(report))
    if log:
        to_csv(Path(log), report)


def _path_of(name: str, place: JobPlace) -> Path:
    """The tuning file: by the value of ``HVDLITE_TUNING_FILE``, ``auto`` or a path."""
    return files.default_path(place) if name == "auto" else Path(name)


def _problem_of(write: Callable[[], object]) -> str | None:
    """Calls the function; returns why it cannot write, or None."""
    try:
        write()
    except (OSError, InvalidArgumentError) as error:
        return f"the tuning cannot be written: {error}"
    return None


# --- the program --------------------------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """The program; it runs on every rank. Returns the exit status."""
    parser = argparse.ArgumentParser("python -m hvdlite.autotune")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--any-bits", action="store_true")
    options = parser.parse_args(words)
    join_job()
    name = str(options.output.absolute()) if options.output else "auto"
    knobs, wrong = startup.own_knobs()
    mpi = startup.load_mpi(lambda ours: True, knobs)
    startup.check_launch(mpi, config.launcher_claim())
    comm = mpi.COMM_WORLD
    problem = None
    try:
        startup.agree(comm, knobs, wrong)  # otherwise a rank that ends here would leave the others waiting
        place = startup.place_of(comm, knobs)
        if comm.rank == 0:
            problem = _problem_of(lambda: files.check_writable(_path_of(name, place)))
        problem = comm.bcast(problem)  # now, and not after the measurements
        if problem is None:
            report = tune(comm, place, knobs, options.seconds, options.any_bits)
            if comm.rank == 0:
                print(to_text(report), flush=True)
                problem = _problem_of(lambda: _write(name, report, knobs.autotune_log))
            problem = comm.bcast(problem)
    except HvdliteError as error:
        problem = str(error)
    if problem and comm.rank == 0:
        print(f"hvdlite tune: {problem}", file=sys.stderr)
    return int(bool(problem))


def _write(name: str, report: Report, log: str) -> None:
    """Writes the files, and prints how to use them."""
    path = _path_of(name, report.place)
    files.save(path, report.place, report.settings, to_evidence(report))
    if log:
        to_csv(Path(log), report)
    print(f"written to {path}; jobs of this shape take it with HVDLITE_TUNING_FILE={name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
