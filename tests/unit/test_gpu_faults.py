"""Each call of the driver, of NCCL and of NVRTC that an engine makes fails once: all ranks are told what failed, or the engines
do without; nobody hangs, crashes, gets wrong numbers or leaves anything on the GPUs."""

import functools
import re
import threading
from pathlib import Path

import numpy as np
import pytest
from support.fake_gpu import DriverError, FakeGpus, LeakCheck, missing
from support.gpu_ranks import run_gpu_ranks
from support.limits import DEADLINE, eventually
from support.thread_ranks import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCESCATTER, SUM

from hvdlite.errors import HvdliteError

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

SIZE = 2
ROUTES = {"nccl": [0, 1], "staged": [0, 0]}
OPERATIONS = (ALLREDUCE, ALLREDUCE, BROADCAST, ALLGATHER, REDUCESCATTER, ALLTOALL)
SCALED, SCALE = 1, 4.0  # one operation needs kernels, also with NCCL
OUT_OF_MEMORY, ILLEGAL_ADDRESS, UNKNOWN = 2, 700, 999
NCCL_INTERNAL, NVRTC_COMPILATION = 3, 6
HEADERS = ("cuda_abi.h", "nccl_abi.h", "nvrtc_abi.h")
NAMES = re.compile(r'"((?:cu|nccl|nvrtc)[A-Z]\w+?)(?:_v2)?"')
FUNCTIONS = [
    name for header in HEADERS for name in NAMES.findall((Path(__file__).parents[2] / "csrc/device" / header).read_text())
]


def given(rank, number):
    """Inputs of operation `number`: 16 rows, so that everything can be split."""
    return np.arange(16, dtype=np.float32) * (number + 1) + 100 * rank


def expected(rank, number, kind):
    inputs = [given(each, number) for each in range(SIZE)]
    if kind == ALLREDUCE:
        return (inputs[0] + inputs[1]) * (SCALE if number == SCALED else 1)
    if kind == BROADCAST:
        return inputs[1]
    if kind == ALLGATHER:
        return np.concatenate(inputs)
    if kind == REDUCESCATTER:
        return np.split(inputs[0] + inputs[1], SIZE)[rank]
    return np.concatenate([np.split(each, SIZE)[rank] for each in inputs])


class Trial:
    """Two ranks do each operation once. Only calls of the engines, and what they make of them, count and fail."""

    def __init__(self, gpus, route):
        self.gpus, self.devices = gpus, ROUTES[route]
        self.barrier = threading.Barrier(SIZE)
        self.before = {}
        self.calls = {}

    def together(self, action):
        """Once, when all ranks have come here, and before any goes on."""
        if self.barrier.wait(DEADLINE) == 0:
            action()
        self.barrier.wait(DEADLINE)

    def run(self, function=None, nth=0, code=0):
        """By rank and operation the error's text, or None where the result was right."""

        def begin():
            self.gpus.idle()
            self.before = self.gpus.called()
            if function:
                self.gpus.fail(function, nth, code)

        def end():
            self.calls = self.gpus.called()
            if function:
                self.gpus.fail(function, 0, 0)

        outcomes = run_gpu_ranks(self.gpus, SIZE, lambda rank: self.body(rank, begin, end), {"log_level": 5}, self.devices)
        failed = any(isinstance(outcome, str) for rank in outcomes for outcome in rank)
        for rank, results in enumerate(outcomes):
            for number, result in enumerate(results):
                # What NCCL was doing when an engine failed is aborted, and its results are anything.
                if not isinstance(result, str) and not (failed and self.devices == ROUTES["nccl"]):
                    wanted = expected(rank, number, OPERATIONS[number])
                    assert result[: wanted.size].tobytes() == wanted.tobytes(), f"operation {number} on rank {rank}"
        return [[outcome if isinstance(outcome, str) else None for outcome in rank] for rank in outcomes]

    def body(self, rank, begin, end):
        numbers = range(len(OPERATIONS))
        outputs = [rank.gpus.empty(32, np.float32, rank.device, rank.stream) for _ in numbers]
        arrays = [(rank.array(given(rank.rank, number)), outputs[number]) for number in numbers]
        self.together(begin)
        outcomes = []
        for number in numbers:
            outcomes.append(self.one(rank, number, *arrays[number]))
            if isinstance(outcomes[-1], str):
                break
        failed = self.tell(rank, outcomes) or self.tell(rank, [self.end(rank)])
        self.together(end)
        if failed:  # then nobody looks at the rest
            return failed
        # What broke a GPU may have been a call that mattered to no operation: then this rank's own call fails.
        results = [self.read(outcome) for outcome in outcomes]
        told = self.tell(rank, results) or self.tell(rank, [self.meet(rank, "read")])
        return told or results

    @staticmethod
    def tell(rank, outcomes):
        """An error, which a program does not survive, and says so when it ends; nothing if there is none."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, str)][:1]
        for error in errors:
            rank.engine.publish_failure(error)
        return errors

    def end(self, rank):
        """Whoever has no more to do on GPUs waits for the others here, and learns what happened to them, and to work that some
        engine had handed to its GPU before."""
        error = self.meet(rank, "handed over")  # all work of all ranks
        if error is None:
            self.gpus.idle()
            # While they wait, engines look what has become of that work; and the second fails on all if one has failed.
            error = self.meet(rank, "looked after") or self.meet(rank, "agreed")
        return error

    @staticmethod
    def meet(rank, name):
        """Waits for the others on the host. The error's text, if any."""
        try:
            rank.host.barrier(name)
        except HvdliteError as error:
            return str(error)
        return None

    def one(self, rank, number, array, output):
        kind = OPERATIONS[number]
        try:
            made = kind not in (ALLREDUCE, BROADCAST)
            options = {"root": 1, "op": SUM, "prescale": SCALE if number == SCALED else 1.0}
            handle = rank.start(kind, f"trial.{number}", array, None if made else output, **options)
            result = rank.wait(handle)
            if made:
                result.copy_to(output.ptr, rank.stream.handle)
        except HvdliteError as error:
            return str(error)
        return output

    @staticmethod
    def read(outcome):
        """The numbers, or the error's text."""
        try:
            return outcome.numpy()
        except DriverError as error:  # the GPU has broken down
            return str(error)


@functools.cache
def calls_of_a_good_run(route):
    with LeakCheck() as gpus:
        trial = Trial(gpus, route)
        assert trial.run() == [[None] * len(OPERATIONS)] * SIZE
        return {name: number - trial.before.get(name, 0) for name, number in trial.calls.items()}


def check(route, function, nth, code):
    """What the ranks were told, each that was."""
    gpus = FakeGpus()
    try:
        outcomes = Trial(gpus, route).run(function, nth, code)
        gpus.close()
        eventually(lambda: all("memory" in line for line in gpus.leaks().splitlines()))
        left = gpus.leaks()
    finally:
        gpus.cuda.fake_reset()
    told = [next(filter(None, rank)) for rank in outcomes if any(rank)]
    # Memory that a GPU may still write to after a failure is given up.
    assert all(told and "memory" in line for line in left.splitlines()), left
    return told


def codes(function):
    """What the function returns when things go wrong."""
    if function.startswith("cu"):
        return (OUT_OF_MEMORY,) if "Alloc" in function else (UNKNOWN, ILLEGAL_ADDRESS)
    return (NCCL_INTERNAL if function.startswith("nccl") else NVRTC_COMPILATION,)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_failing_call_is_survived_or_told(function, route):
    calls = calls_of_a_good_run(route).get(function, 0)
    # None where this route has no use for it.
    for nth in sorted({1, 2, 3, calls // 2, calls - 1} & set(range(1, calls + 1))):
        for code in codes(function):
            told = check(route, function, nth, code)
            # All ranks fail, or none.
            assert len(told) in (0, SIZE), told
            # The first symptom of a GPU that has broken down may be any call's.
            name = "NVRTC" if function.startswith("nvrtc") else function
            assert not told or name in " ".join(told) or code == ILLEGAL_ADDRESS, f"call {nth}, code {code}: {told}"


def test_the_trials_reach_what_they_are_about():
    calls = {route: calls_of_a_good_run(route) for route in ROUTES}
    for route in ROUTES:
        assert {"cuMemcpyAsync", "cuEventRecord", "cuStreamWaitEvent"} <= {name for name, n in calls[route].items() if n}
    assert calls["nccl"]["cuLaunchKernel"] > 0
    assert calls["nccl"]["ncclAllReduce"] == 4
    assert calls["staged"].get("ncclAllReduce", 0) == 0
    assert calls["staged"]["cuEventSynchronize"] > 0
