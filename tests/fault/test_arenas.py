"""Gradients in an arena where there can be one, and training all the same where there cannot."""

from support.job import run_job
from support.shared_memory import NO_PROC, SMALL_SHM, needs_mount, nothing_left_behind

TRAIN = """
import gc, os, sys
from pathlib import Path
import torch
import hvdlite.torch as hvd
from hvdlite.runtime import RUNTIME

torch.set_num_threads(1)


def train(wanted, rows=256, columns=128):
    hvd.init()
    torch.manual_seed(1)
    model = torch.nn.Linear(rows, columns)  # its weight is large enough for a place
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), gradient_as_bucket_view=wanted)
    inputs = torch.randn(4, rows)
    for step in range(3):
        optimizer.zero_grad()
        (model(inputs).sum() * (hvd.rank() + 1)).backward()
        expected = inputs.sum(0) * (hvd.size() + 1) / 2
        assert torch.allclose(model.weight.grad, expected.expand(columns, rows), atol=1e-4)
        optimizer.step()
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split(maxsplit=5)[5] for line in maps if "hvdlite-arena" in line]
    kind = "none" if not found else "memfd" if found[0].startswith("/memfd:") else "shm"
    print("arena", kind, len(found), RUNTIME.engine.counters()["arena_ops"], flush=True)


"""

ONE_AFTER_THE_OTHER = """
for wanted, variable, value in {cases}:
    os.environ[variable] = value
    print("case", variable, value, wanted, file=sys.stderr, flush=True)
    train(wanted)
    hvd.shutdown()
    del os.environ[variable]
    gc.collect()  # the model's gradients, which lie in the arena
"""


def arenas(result, rank) -> list[str]:
    assert result.returncode == 0, result.report()
    return [line.removeprefix("arena ") for line in result.stdout[rank].splitlines()]


def warnings(result) -> list[str]:
    return [line for text in result.stderr.values() for line in text.splitlines() if "are not in an arena" in line]


def test_where_the_arena_lies():
    """Also of several engines in turn: the memory of one is gone before the next makes its own."""
    knobs = ("auto", "shm", "memfd")
    cases = [(True, "HVDLITE_SHARED_MEMORY", knob) for knob in knobs]
    with nothing_left_behind():
        result = run_job(TRAIN + ONE_AFTER_THE_OTHER.format(cases=cases), 2)
    for rank in result.stdout:
        assert arenas(result, rank) == [f"{'shm' if knob == 'shm' else 'memfd'} 2 3" for knob in knobs], result.report()
    assert warnings(result) == [], result.report()


def test_whoever_asked_for_it_is_told_why_there_is_none():
    reasons = {
        ("HVDLITE_SHARED_MEMORY", "off"): "HVDLITE_SHARED_MEMORY=off does not allow an arena",
        ("HVDLITE_ALLREDUCE_ALGORITHM", "ring"): "HVDLITE_ALLREDUCE_ALGORITHM=ring cannot use an arena",
    }
    cases = [(wanted, *setting) for setting in reasons for wanted in (True, None)]
    result = run_job(TRAIN + ONE_AFTER_THE_OTHER.format(cases=cases), 2)
    for rank in result.stdout:
        assert arenas(result, rank) == ["none 0 0"] * len(cases), result.report()
        for case, text in zip(cases, result.stderr[rank].split("case ")[1:], strict=True):
            said = [line for line in text.splitlines() if "are not in an arena" in line]
            assert len(said) == (rank == 0 and case[0] is True), result.report()
            assert all(reasons[case[1:]] in line for line in said), result.report()


@needs_mount
def test_a_rank_that_cannot_open_the_others_parts():
    """The second kind of memory serves where the first does not."""
    with nothing_left_behind():
        result = run_job(NO_PROC + TRAIN + "train(True)", 3)
    assert [arenas(result, rank) for rank in range(3)] == [["shm 3 3"]] * 3, result.report()


@needs_mount
def test_too_little_memory_for_an_arena():
    """Enough for the ranks' window, but not for their gradients: noticed when the arena is made, not by a signal later."""
    with nothing_left_behind():
        program = SMALL_SHM % (32 * 1024) + TRAIN + "train(True, 4096, 2048)"
        result = run_job(program, 2, env={"HVDLITE_SHARED_MEMORY": "shm"})
    assert [arenas(result, rank) for rank in range(2)] == [["none 0 0"]] * 2, result.report()
    assert len(warnings(result)) == 1, result.report()
    assert "No space left on device" in warnings(result)[0], result.report()
