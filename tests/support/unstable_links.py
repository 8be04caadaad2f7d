"""Trains over a link that loses frames, has jitter or is cut for some seconds, and writes a table into docs/slow_links.md.

``make unstable-links`` runs it. It takes some minutes, and needs root for the hosts and the link (tests/support/hosts.py). Each
training is a separate job on two hosts with one rank each, with hvdlite or with DistributedDataParallel on gloo. The link
becomes unstable after the training has begun.
"""

import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.hosts import emulated_hosts
from support.pages import write_between
from support.slow_links_report import DELAY_US, PAGE, RATE_MBIT
from support.slow_links_training import WAYS, train

from hvdlite.bench.peers import join_gloo
from hvdlite.bench.world import World

__all__ = ["CONDITIONS", "MARKS", "PAIR"]

TESTS = Path(__file__).parents[1]
MARKS = ("<!-- begin: written by `make unstable-links` -->", "<!-- end: make unstable-links -->")
PAIR = ("float32", "DDP on gloo")
STEPS = 40
DEADLINE = 120.0


@dataclass(frozen=True)
class Condition:
    """The changes of the link after the first steps.

    Attributes:
        changes: the seconds since the previous change, and the properties of the link that differ from the good link from then
        on.
        environment: variables of the ranks.
    """

    changes: Sequence[tuple[float, Mapping[str, float]]] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


CONDITIONS = {
    "good": Condition(),
    "1 % of all frames are lost": Condition([(0.0, {"loss": 0.01})]),
    "jitter of 20 ms": Condition([(0.0, {"jitter_us": 20_000.0})]),
    "cut for 4 s": Condition([(0.0, {"loss": 1.0}), (4.0, {})]),
    "cut for 8 s, `HVDLITE_PEER_TIMEOUT=30`": Condition([(0.0, {"loss": 1.0}), (8.0, {})], {"HVDLITE_PEER_TIMEOUT": "30"}),
}


def on_a_rank(way: str, folder: str) -> None:
    """The program of each rank: trains, and prints the seconds of each step and a checksum of the weights."""
    import torch
    from mpi4py import MPI

    torch.set_num_threads(1)
    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if way == PAIR[0]:
        import hvdlite.torch as hvd

        hvd.init()
    else:
        join_gloo(World())

    def begun(step: int) -> None:
        if step == 2 and rank == 0:
            Path(folder, "begun").touch()

    result = train(WAYS[way], STEPS, rank, size, begun)
    weights = b"".join(each.detach().numpy().tobytes() for each in result["model"].parameters())
    print(json.dumps({"seconds": result["seconds"], "weights": zlib.crc32(weights)}), flush=True)


def run(way: str, condition: Condition) -> tuple[Any, float]:
    """Runs a job; returns its result, and the seconds from the first change to its end."""
    network = emulated_hosts(2, RATE_MBIT, DELAY_US)
    with network as hosts, tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        environment = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent))), **condition.environment}
        job = pool.submit(hosts.run, 1, Path(__file__), environment, [way, folder], timeout=DEADLINE)
        while not Path(folder, "begun").exists() and not job.done():
            time.sleep(0.01)
        began = time.monotonic()
        for after, change in condition.changes:
            time.sleep(after)
            hosts.shape(**{"rate_mbit": RATE_MBIT, "delay_us": DELAY_US, **change})
        result = job.result()
        return result, time.monotonic() - began


def cell(way: str, condition: Condition, good: int | None) -> tuple[str, int | None]:
    """The text about a training, and a checksum of its weights; None if it has failed."""
    result, seconds = run(way, condition)
    if result.timed_out:
        return f"waits for more than {seconds:.0f} s", None
    if result.returncode:
        print(f"--- {way}, {condition}\n{result.report()}", file=sys.stderr)
        words = [line for line in result.stderr[0].splitlines() if "Error" in line or "hvdlite ERROR" in line]
        return f"ends after {seconds:.0f} s: {words[0][:200] if words else 'without an error text'}", None
    ranks = [json.loads(result.stdout[rank].splitlines()[-1]) for rank in (0, 1)]
    weights = {rank["weights"] for rank in ranks}
    text = f"{sum(ranks[0]['seconds']):.1f} s, the longest step {max(ranks[0]['seconds']):.1f} s"
    lines = sum(" hvdlite " in line for rank in (0, 1) for line in result.stderr[rank].splitlines())
    if len(weights) > 1:
        text += ", the ranks differ"
    elif good is not None and weights != {good}:
        text += ", other weights"
    return text + (f", {lines} lines in the log" if lines else ""), next(iter(weights))


def main() -> None:
    """Measures, and writes the table."""
    lines = [f"| the link | hvdlite, {PAIR[0]} | {PAIR[1]} |", "|---|---|---|"]
    good: dict[str, int | None] = dict.fromkeys(PAIR)
    for name, condition in CONDITIONS.items():
        cells = []
        for way in PAIR:
            text, weights = cell(way, condition, good[way])
            good[way] = good[way] or weights
            cells.append(text.replace("|", "/"))
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    write_between(PAGE, MARKS, "\n".join(lines))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        on_a_rank(*sys.argv[1:])
    else:
        main()
