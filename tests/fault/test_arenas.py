"""Gradients in an arena where there can be one, and training all the same where there cannot."""

import pytest
from support.job import run_job
from support.shared_memory import NO_PROC, SMALL_SHM, needs_mount, nothing_left_behind

TRAIN = """
from pathlib import Path
import torch
import hvdlite.torch as hvd
from hvdlite.runtime import RUNTIME

torch.set_num_threads(1)
hvd.init()
torch.manual_seed(1)
model = torch.nn.Linear(256, 128)  # its weight is large enough for a place
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), gradient_as_bucket_view={wanted})
inputs = torch.randn(4, 256)
for step in range(3):
    optimizer.zero_grad()
    (model(inputs).sum() * (hvd.rank() + 1)).backward()
    expected = inputs.sum(0) * (hvd.size() + 1) / 2
    assert torch.allclose(model.weight.grad, expected.expand(128, 256), atol=1e-4)
    optimizer.step()
found = [line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "hvdlite-arena" in line]
kind = "none" if not found else "memfd" if found[0].startswith("/memfd:") else "shm"
print("arena", kind, len(found), RUNTIME.engine.counters()["arena_ops"], flush=True)
"""


def arenas(result) -> list[str]:
    assert result.returncode == 0, result.report()
    return [line.removeprefix("arena ") for text in result.stdout.values() for line in text.splitlines()]


def warnings(result) -> list[str]:
    return [line for text in result.stderr.values() for line in text.splitlines() if "views of an arena" in line]


@pytest.mark.parametrize("knob", ["auto", "memfd", "shm"])
def test_where_the_arena_lies(knob):
    with nothing_left_behind():
        result = run_job(TRAIN.format(wanted=True), 2, env={"HVDLITE_SHARED_MEMORY": knob})
    assert arenas(result) == [f"{'shm' if knob == 'shm' else 'memfd'} 2 3"] * 2, result.report()
    assert warnings(result) == [], result.report()


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("HVDLITE_SHARED_MEMORY", "off", "HVDLITE_SHARED_MEMORY=off rules out an arena"),
        ("HVDLITE_ALLREDUCE_ALGORITHM", "ring", "HVDLITE_ALLREDUCE_ALGORITHM=ring has no use for it"),
    ],
)
@pytest.mark.parametrize("wanted", [True, None])
def test_whoever_asked_for_it_is_told_why_there_is_none(variable, value, reason, wanted):
    result = run_job(TRAIN.format(wanted=wanted), 2, env={variable: value})
    assert arenas(result) == ["none 0 0"] * 2, result.report()
    said = warnings(result)
    assert len(said) == (1 if wanted else 0), result.report()
    assert all(reason in line for line in said), result.report()


@needs_mount
def test_a_rank_that_cannot_open_the_others_parts():
    """The second kind of memory serves where the first does not."""
    with nothing_left_behind():
        result = run_job(NO_PROC + TRAIN.format(wanted=True), 3)
    assert arenas(result) == ["shm 3 3"] * 3, result.report()


@needs_mount
def test_too_little_memory_for_an_arena():
    """Enough for the ranks' window, but not for their gradients: noticed when the arena is made, not by a signal later."""
    program = TRAIN.format(wanted=True).replace("256, 128", "4096, 4096").replace("(4, 256)", "(4, 4096)")
    program = program.replace("expand(128, 256)", "expand(4096, 4096)")
    with nothing_left_behind():
        result = run_job(SMALL_SHM % (64 * 1024) + program, 2, env={"HVDLITE_SHARED_MEMORY": "shm"})
    assert arenas(result) == ["none 0 0"] * 2, result.report()
    assert len(warnings(result)) == 1, result.report()
    assert "No space left on device" in warnings(result)[0], result.report()
