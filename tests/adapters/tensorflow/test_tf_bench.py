"""The benchmark's commands for TensorFlow and Keras, for a moment: gradients are checked, and times are there."""

import json
import tempfile
from pathlib import Path

import pytest
from mpi4py import MPI

from hvdlite.bench.__main__ import main

pytest.importorskip("tensorflow")

RANKS = (2,)
ALONE = True  # the benchmark sets the number of TensorFlow's threads
WORLD = MPI.COMM_WORLD


def measured(*words):
    """What a command measured, on all ranks."""
    folder = tempfile.TemporaryDirectory() if WORLD.rank == 0 else None
    path = WORLD.bcast(f"{folder.name}/out.jsonl" if folder else None)
    assert main([*words, "--output", path]) == 0
    WORLD.Barrier()
    records = [json.loads(line) for line in Path(path).read_text().splitlines()]
    WORLD.Barrier()
    if folder:
        folder.cleanup()
    found = [record for record in records if record["record"] == "measurement"]
    assert all(0 < record["min"] <= record["median"] <= record["max"] for record in found)
    return found


@pytest.mark.slow
def test_fit_and_a_tape():
    found = measured("training", "--framework", "keras", "--models", "convnet", "--seconds", "1", "--peers", "hvdlite")
    assert [(record["loop"], record["peer"]) for record in found] == [("fit", "hvdlite"), ("tape", "hvdlite")]
    assert all(record["gradient_bytes"] > 4 * 256 * 128 * 9 for record in found)


def test_operations():
    found = measured("tensorflow-ops", "--tensors", "5", "--elements", "10", "--seconds", "0.5")
    assert [record["peer"] for record in found] == ["baseline", "hvdlite", "hvdlite-grouped"]
