"""torch's own tests of its distributed package (torch.testing._internal.distributed.distributed_test, which is in its wheel)
on any backend, with all ranks in one MPI job:

    python tests/clients/torch_distributed.py hvdlite gloo [--only TEST ...]

prints what became of each test on each backend, and fails if one fails on the first that does not fail on the others, but for
those of what hvdlite's backend does not have (docs/clients.md).

torch starts new processes for each test, as ranks of nobody. Here the ranks of one job run the tests one after the other, each
with a process group of its own. A test that fails ends the job, since its ranks no longer agree; the next job goes on behind
it.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path

RANKS = 3
# torch itself refuses monitored_barrier for every backend but gloo.
NOT_THERE = ("test_monitored_barrier_gloo",)
SILENCE = 180.0  # seconds without a result after which a job counts as hanging


def names():
    """All tests, in the order of their file."""
    _prepare("gloo", tempfile.gettempdir())
    from torch.testing._internal.distributed.distributed_test import DistributedTest

    return [name for name in vars(DistributedTest._DistTestBase) if name.startswith("test_")]


def _prepare(backend, folder):
    """What distributed_test reads when it is imported, and what it asks of a backend it does not know."""
    os.environ.update(BACKEND=backend, TEMP_DIR=folder, WORLD_SIZE=str(RANKS), PYTORCH_PRINT_REPRO_ON_FAILURE="0")
    if backend == "hvdlite":
        import hvdlite.torch.distributed  # noqa: F401, registers the backend
    from torch.testing._internal.common_distributed import DistTestCases

    DistTestCases.backend_feature["ddp"].add(backend)


def rank(backend, folder, tests):
    """One rank's part of a job: each test in turn; its results are lines of a file of its own."""
    me = int(os.environ["OMPI_COMM_WORLD_RANK"])
    _prepare(backend, folder)
    import torch.distributed as dist
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_distributed import TEST_SKIPS
    from torch.testing._internal.distributed import distributed_test

    class Tests(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        pass

    skips = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    results = open(f"{folder}/rank{me}", "w", buffering=1)  # noqa: SIM115, until the process ends
    for name in tests:
        here = Path(folder, name)  # a barrier, a store and a lock for each test
        for use in ("barrier", "test_dir", "init_dir"):
            (here / use).mkdir(parents=True, exist_ok=True)
        os.environ["TEMP_DIR"] = str(here)
        distributed_test.INIT_METHOD = f"file://{here}/second_store"
        distributed_test.Barrier.barrier_id = 0
        # These make their model on the CPU for two backends by name only; others they expect to have GPUs.
        distributed_test.BACKEND = "gloo" if name.startswith("test_accumulate_gradients") else backend
        test = Tests(name)
        test.rank, test.file_name = me, str(here / "store")
        outcome, text = "passed", ""
        try:
            seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(name, distributed_test.default_pg_timeout)
            dist.init_process_group(
                backend, init_method=f"file://{test.file_name}", world_size=RANKS, rank=me, timeout=timedelta(seconds=seconds)
            )
            distributed_test.Barrier.sync(wait_for=RANKS, timeout=60)
            common_utils.set_rng_seed()
            getattr(test, name)()
        except unittest.SkipTest as why:
            outcome, text = "skipped", str(why)
        except SystemExit as end:
            outcome, text = ("skipped", skips[end.code]) if end.code in skips else ("failed", f"exit status {end.code}")
        except BaseException:
            outcome, text = "failed", traceback.format_exc()
        results.write(json.dumps([name, outcome, text]) + "\n")
        if outcome == "failed":
            os._exit(1)
        distributed_test.Barrier.sync(wait_for=RANKS, timeout=60)
        with contextlib.suppress(AssertionError, ValueError):  # some tests destroy it themselves
            dist.destroy_process_group()


def job(backend, tests, output):
    """Runs these tests until one fails; what became of those that ran: {name: (outcome, text)}."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tests").write_text("\n".join(tests))
        process = subprocess.Popen(
            ["mpirun", "-n", str(RANKS), sys.executable, __file__, backend, "--rank", folder], stdout=output, stderr=output
        )
        files = [Path(folder, f"rank{rank}") for rank in range(RANKS)]
        size, since = -1, time.monotonic()
        while process.poll() is None:
            now = sum(file.stat().st_size for file in files if file.exists())
            if now != size:
                size, since = now, time.monotonic()
            if time.monotonic() - since > SILENCE:
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        of_ranks = [[json.loads(line) for line in file.read_text().splitlines()] if file.exists() else [] for file in files]
    results = {}
    for at in range(max(map(len, of_ranks))):
        there = [lines[at] for lines in of_ranks if at < len(lines)]
        outcome = (
            "failed" if len(there) < RANKS else max((line[1] for line in there), key=["skipped", "passed", "failed"].index)
        )
        if outcome == "failed":
            text = "\n".join(
                f"rank {number}: {lines[at][2] if at < len(lines) else 'no result'}" for number, lines in enumerate(of_ranks)
            )
        else:
            text = next(line[2] for line in there if line[1] == outcome)
        results[there[0][0]] = outcome, text
    if len(results) < len(tests) and "failed" not in [outcome for outcome, _ in results.values()]:
        results[tests[len(results)]] = "failed", f"no rank had a result (exit status {process.returncode})"
    return results


def run(backend, tests, output):
    """All these tests on one backend."""
    results = {}
    while left := [test for test in tests if test not in results]:
        for name, (outcome, text) in job(backend, left, output).items():
            results[name] = outcome, text
            print(f"{backend} {outcome} {name}" + (f"\n{text}" if outcome == "failed" else ""), flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("backends", nargs="+", help="the backend to test, and those to compare it with")
    parser.add_argument("--only", nargs="*", help="names of tests")
    parser.add_argument("--output", default=os.devnull, help="a file for what the ranks print")
    parser.add_argument("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        rank(options.backends[0], options.rank, Path(options.rank, "tests").read_text().splitlines())
        return
    with open(options.output, "w") as output:
        results = {backend: run(backend, options.only or names(), output) for backend in options.backends}
    for backend, outcomes in results.items():
        all_of_them = [outcome for outcome, _ in outcomes.values()]
        print(f"{backend}: " + ", ".join(f"{all_of_them.count(what)} {what}" for what in ("passed", "failed", "skipped")))
    failed = [{name for name, (outcome, _) in outcomes.items() if outcome == "failed"} for outcomes in results.values()]
    alone = sorted(failed[0] - set.union(*failed[1:])) if len(failed) > 1 else []
    for name in alone:
        print(f"fails on {options.backends[0]} only: {name}")
    sys.exit(not all(name.startswith(NOT_THERE) for name in alone))


if __name__ == "__main__":
    main()
