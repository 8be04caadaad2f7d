"""Random programs of GPU and CPU operations on fake GPUs that get to their work in random order: results are exact, and nothing
is left on the GPUs."""

import random

import numpy as np
import pytest
from support.fake_gpu import LeakCheck, missing
from support.gpu_ranks import run_gpu_ranks
from support.seeds import seeds
from support.thread_ranks import ALLGATHER, ALLREDUCE, ALLTOALL, BROADCAST, MAX, REDUCESCATTER, SUM

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

ROUTES = {"nccl": [0, 1, 2], "one GPU": [0, 0, 0], "mixed": [0, 1, 1]}
DTYPES = ("float32", "float64", "int32", "int64", "uint8", "float16", "int16")
KINDS = (ALLREDUCE, ALLREDUCE, ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER)


class Step:
    """One operation that all members of a process set submit, with what each of them gives and gets."""

    def __init__(self, source, number, members):
        self.name = f"step.{number}"
        self.members = members
        self.kind = source.choice(KINDS)
        self.on_gpu = source.random() < 0.75
        self.in_place = source.random() < 0.4 and self.kind in (ALLREDUCE, BROADCAST)
        self.op = source.choice((SUM, SUM, MAX)) if self.kind == ALLREDUCE else SUM
        dtype = source.choice(DTYPES)
        size = len(members)
        count = source.choice((1, 3, 17, 256, 1000, source.randrange(1, 40000)))
        rows = count * size if self.kind == ALLTOALL else count + size
        numbers = np.random.default_rng(number)
        self.root = members[source.randrange(size)]
        self.inputs = {rank: numbers.integers(0, 8, rows).astype(dtype) for rank in members}
        if self.kind == ALLGATHER:
            self.inputs = {rank: self.inputs[rank][: 1 + rank * (count // size)] for rank in members}

    def expected(self, rank):
        given = [self.inputs[member] for member in self.members]
        if self.kind == BROADCAST:
            return self.inputs[self.root]
        if self.kind == ALLGATHER:
            return np.concatenate(given)
        position, size = self.members.index(rank), len(self.members)
        if self.kind == ALLTOALL:
            return np.concatenate([np.split(each, size)[position] for each in given])
        total = (np.add if self.op == SUM else np.maximum).reduce(given, dtype=given[0].dtype)
        return total if self.kind == ALLREDUCE else np.array_split(total, size)[position]


def program(seed, size, steps):
    source = random.Random(seed)
    sets = [list(range(size)), [0, 1], list(range(1, size))]
    return [Step(source, number, source.choice(sets)) for number in range(steps)]


class Player:
    """Runs a program on one rank, in an order of its own: windows of operations, each waited for when the next is submitted."""

    WINDOW = 5

    def __init__(self, rank, seed):
        self.rank, self.gpus = rank, rank.gpus
        self.source = random.Random(seed * 100 + rank.rank)

    def play(self, steps, sets):
        flying = []
        for first in range(0, len(steps) + self.WINDOW, self.WINDOW):
            window = [step for step in steps[first : first + self.WINDOW] if self.rank.rank in step.members]
            self.source.shuffle(window)
            begun = [self.submit(step, sets[tuple(step.members)]) for step in window]
            self.source.shuffle(flying)
            for finish in flying:
                finish()
            flying = begun

    def submit(self, step, process_set):
        """Starts the operation; what it returns ends it and compares the result."""
        values = step.inputs[self.rank.rank]
        options = {"process_set": process_set, "root": step.root, "op": step.op}
        return self.on_gpu(step, values, options) if step.on_gpu else self.on_host(step, values, options)

    def on_host(self, step, values, options):
        array = values.copy()
        makes = step.kind in (ALLREDUCE, BROADCAST)
        output = (array if step.in_place else np.empty_like(array)) if makes else None
        handle = self.rank.host.start(step.kind, step.name, array, output, **options)

        def finish():
            result = handle.result()
            self.compare(step, output if makes else self.rank.host.take(result, array.dtype))

        return finish

    def on_gpu(self, step, values, options):
        stream = self.gpus.stream(self.rank.device)
        array = self.gpus.empty(values.shape, values.dtype, self.rank.device, stream)
        # The values come late, and the memory is used for something else right after the operation.
        if self.source.random() < 0.3:
            stream.busy(0.002)
        array.write(self.gpus.pinned(values, self.rank.device))
        makes = step.kind in (ALLREDUCE, BROADCAST)
        output = (array if step.in_place else self.rank.empty_like(array)) if makes else None
        handle = self.rank.start(step.kind, step.name, array, output, **options)

        def finish():
            result = self.rank.wait(handle, stream)
            copy = self.gpus.empty(values.shape if makes else result.shape, values.dtype, self.rank.device, stream)
            if makes:
                copy.copy(output, stream)
                with self.gpus.on(self.rank.device):
                    self.gpus.call("cuMemsetD8Async", output.ptr, 0x55, output.nbytes, stream.handle)
            elif copy.nbytes:
                result.copy_to(copy.ptr, stream.handle)
            with self.gpus.on(self.rank.device):
                self.gpus.call("cuMemsetD8Async", array.ptr, 0x55, array.nbytes, stream.handle)
            self.compare(step, copy.numpy())

        return finish

    def compare(self, step, result):
        expected = step.expected(self.rank.rank)
        assert result.tobytes() == expected.tobytes(), f"{step.name} (kind {step.kind}) on rank {self.rank.rank}"


def play(rank, seed, steps):
    try:
        return play_all(rank, seed, steps)
    except BaseException as error:  # or the others would wait for this rank
        rank.engine.publish_failure(str(error))
        raise


def play_all(rank, seed, steps):
    sets = {tuple(range(rank.size)): 0}
    for members in ([0, 1], list(range(1, rank.size))):
        sets[tuple(members)] = rank.host.add_process_set(members)
    Player(rank, seed).play(steps, sets)
    return rank.counters()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("seed", seeds(range(1, 9)))
def test_random_programs(seed, route):
    steps = program(seed, 3, 40)
    with LeakCheck() as gpus:
        gpus.set(seed=seed)
        counters = run_gpu_ranks(gpus, 3, lambda rank: play(rank, seed, steps), devices=ROUTES[route])
    for counter in counters:
        assert counter["nccl_ops" if route == "nccl" else "staged_ops"] > 0
