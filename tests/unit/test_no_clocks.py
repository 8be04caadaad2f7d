"""No test asserts real time, or sleeps in order that something has happened by then: a slow machine would fail it.

What is promised in time is shown in virtual time, by counters and by order; waiting is for what can be observed, until a
deadline that only a hang reaches (support/limits.py, support/rest.py). Real time is for `python -m hvdlite.bench guard`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LEAST_DEADLINE = 60  # seconds

# Who may look at a clock, and why.
ALLOWED = {
    "support/limits.py": "waits until something holds, with a deadline",
    "support/job.py": "ends jobs that hang",
    "support/in_step.py": "looks whether the other ranks of a job live",
    "support/warm.py": "waits until an interpreter is up, with a deadline",
    "support/patient_comm.py": "waits for the other ranks without taking the processor from them",
    "support/workers.py": "says from time to time how far the tests are",
    "support/measure_links.py": "compares hvdlite's times with Open MPI's, and is no test",
    "support/guard_hosts.py": "compares the times of two builds, and is no test",
    "support/chaos_program.py": "is the program of a campaign that tells how soon elastic training goes on, and is no test",
    "support/elastic_training.py": "is the program of the figures in docs/elastic.md, and is no test",
    "support/elastic_report.py": "kills ranks of that program and tells when, and is no test",
    "support/unstable_links.py": "changes a link after so many seconds for the figures in docs/slow_links.md, and is no test",
    "support/slow_links_training.py": "is the program of the figures in docs/slow_links.md, and is no test",
    "clients/__main__.py": "prints how long a client took",
    "clients/torch_distributed.py": "ends jobs of other people's tests that hang",
    "matrix/__main__.py": "prints how long a cell took",
    "shim/scripts/pytorch_synthetic_benchmark.py": "is a benchmark written for Horovod; nobody asserts what it prints",
    "shim/scripts/tensorflow2_synthetic_benchmark.py": "is a benchmark written for Horovod; nobody asserts what it prints",
    "hosts/test_harness.py": "has a job that hangs ended by its deadline",
    "native/hosts/wire.cc": "is a wire that takes time",
    "native/hosts/main.cc": "ends the emulated hosts when their time to live is over",
    "native/fake_gpu/driver/scheduler.cc": "pauses at random, so that nothing is in order that no event orders",
    "native/fake_gpu/driver/streams.cc": "keeps a stream busy for as long as a test says",
    "native/fake_gpu/driver/events.cc": "tells how much time lies between two events",
    "native/fake_gpu/nccl/comms.cc": "takes a while to start, as NCCL does",
    "fault/test_stalls.py": "has jobs whose ranks wait for what another one has written",
    "mutants/run.py": "ends tests that hang, and tells how long they took",
    "native/cases/device/buffers.cc": "waits until something holds",
    "native/cases/device/nccl.cc": "waits until something holds",
    "support/failure_cases.py": "has ranks that wait until they are killed, and such as come at moments of their own",
    "unit/test_deaths.py": "lets ranks die at moments that it draws",
    "unit/test_leaving.py": "lets ranks leave at moments that it draws",
    "unit/test_parallel_support.py": "has tests that hang on purpose, and is about the watchdog",
    "unit/test_stall.py": "waits until something holds",
    "unit/test_token.py": "keeps an engine busy until something holds, with a deadline",
    "unit/test_workers.py": "has two tests that wait for each other, with a deadline",
    "native/fuzz_main.cc": "runs for as long as it is told",
    "native/stress.cc": "runs for as long as it is told",
    "native/stress_gpu.cc": "runs for as long as it is told",
}
CLOCKS = (
    "sleep",
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "thread_time",
)
IN_TEXT = re.compile(rf"\btime\.(?:{'|'.join(CLOCKS)})\(|\btimeit\b|\basyncio\.sleep\(")
IN_NATIVE = re.compile(r"\bsleep_(?:for|until)\b|\b(?:u|nano)?sleep\(|\b(?:\w*[cC]lock)::now\(")


def clocks_in_python(source: str) -> Iterator[str]:
    """Where a program or the programs in its texts read a clock or sleep, and where a deadline is too short."""
    for node in ast.walk(ast.parse(source)):
        where = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id == "time" and node.attr in CLOCKS) or (node.value.id, node.attr) == ("asyncio", "sleep"):
                yield f"line {where}: {node.value.id}.{node.attr}"
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "timeit"):
            yield f"line {where}: from {node.module} import"
        elif isinstance(node, ast.Import) and any(name.name == "timeit" for name in node.names):
            yield f"line {where}: import timeit"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (f"line {where}, in a text: {found[0]}" for found in IN_TEXT.finditer(node.value))
        elif isinstance(node, ast.keyword) and node.arg == "timeout" and is_short(node.value):
            yield f"line {node.value.lineno}: timeout={ast.unparse(node.value)}"
        elif isinstance(node, ast.Call) and waits_shortly(node):
            yield f"line {where}: {ast.unparse(node)}"


def is_short(value: ast.expr) -> bool:
    """Is this a deadline written as a number, and too short?"""
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float) and 0 < value.value < LEAST_DEADLINE


def waits_shortly(call: ast.Call) -> bool:
    """Such as over.wait(0.2), by which one sleeps as well."""
    named = isinstance(call.func, ast.Attribute) and call.func.attr in ("wait", "join")
    return named and len(call.args) == 1 and is_short(call.args[0])


def clocks_in_native(source: str) -> Iterator[str]:
    """Where a C++ program reads a clock or sleeps, comments aside."""
    for number, line in enumerate(source.splitlines(), 1):
        yield from (f"line {number}: {found[0]}" for found in IN_NATIVE.finditer(line.split("//")[0]))


def clocks_in(path: Path) -> list[str]:
    read = clocks_in_python if path.suffix == ".py" else clocks_in_native
    return list(read(path.read_text()))


FILES = sorted(path for suffix in ("py", "cc", "h") for path in TESTS.rglob(f"*.{suffix}") if path != Path(__file__))


def test_nobody_else_looks_at_a_clock():
    found = {str(path.relative_to(TESTS)): clocks for path in FILES if (clocks := clocks_in(path))}
    wrong = {name: clocks for name, clocks in found.items() if name not in ALLOWED}
    assert not wrong, "\n".join(f"{name}: {', '.join(clocks)}" for name, clocks in wrong.items())
    assert not [name for name in ALLOWED if name not in found], "these need no exception any more"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import time\ntime.sleep(1)", ["line 2: time.sleep"]),
        ("from time import sleep", ["line 1: from time import"]),
        ("def test_x():\n    assert time.perf_counter() < 3", ["line 2: time.perf_counter"]),
        ('run_job("""\n    import time\n    time.sleep(2)\n""", 2)', ["line 1, in a text: time.sleep("]),
        ('run_job(f"{PRELUDE} time.monotonic()")', ["line 1, in a text: time.monotonic("]),
        ("run_job(x, timeout=5)", ["line 1: timeout=5"]),
        ("over.wait(0.2)\nthread.join(5)", ["line 1: over.wait(0.2)", "line 2: thread.join(5)"]),
        ("run_job(x, timeout=60)\nqueue.get(timeout=0)\nwork.wait(timeout=DEADLINE)", []),
        ("# time.sleep(1)\nruntime.sleep(1)\nspent.time", []),
    ],
)
def test_what_counts_in_python(source, found):
    assert list(clocks_in_python(source)) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("std::this_thread::sleep_for(1ms);", ["line 1: sleep_for"]),
        ("\nauto begin = base::Clock::now();  // Clock::now()", ["line 2: Clock::now("]),
        ("usleep(3); nanosleep(&some, nullptr);", ["line 1: usleep(", "line 1: nanosleep("]),
        ("// sleep_for\nengine.sleep_limit(outlook); clock.now();", []),
    ],
)
def test_what_counts_in_native_code(source, found):
    assert list(clocks_in_native(source)) == found
