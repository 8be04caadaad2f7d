"""Who is accused of silence, and who is not: engine::Heartbeat on a clock that the test sets."""

import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from support.thread_ranks import SUM, engines, in_threads

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "tests/native/heartbeat_cases.cc", ROOT / "csrc/engine/heartbeat.cc"]


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Plays events (see heartbeat_cases.cc) to a rank with the other hosts 1 and 2 and a timeout of 10 s."""
    if shutil.which("c++") is None:
        pytest.skip("takes a C++ compiler")
    program = tmp_path_factory.mktemp("heartbeat") / "cases"
    subprocess.run(["c++", "-std=c++20", f"-I{ROOT / 'csrc'}", *map(str, SOURCES), "-o", str(program)], check=True)

    def run(*events):
        result = subprocess.run([str(program), "10000", *map(str, events)], capture_output=True, text=True, check=True)
        return dict(line.split(":") for line in result.stdout.splitlines())

    return run


def looks(until, *others):
    """A look every second, and these events at their times."""
    at = {str(second * 1000): second * 1000 for second in range(1, until + 1)}
    at.update({event: int(event.replace("=", "-").split("-")[0]) - 1 for event in others})
    return sorted(at, key=at.__getitem__)


def test_signs_of_life_are_due_at_intervals_to_everybody(play):
    seen = play(*looks(7, *(f"{ms}={host}" for ms in (2500, 5000) for host in (1, 2))))
    assert seen == {"1000": "", "2000": " >1 >2", "3000": "", "4000": " >1 >2", "5000": "", "6000": " >1 >2", "7000": ""}


def test_a_host_is_silent_only_after_the_timeout(play):
    seen = play(*looks(15, *(f"{second * 1000}=1" for second in range(1, 16)), "3500=2"))
    assert "!2" not in seen["13000"]
    assert "!2" in seen["14000"]
    assert not any("!1" in line for line in seen.values())


def test_who_has_left_is_not_missed(play):
    seen = play(*looks(20, "3000-2", *(f"{second * 1000}=1" for second in range(1, 21))))
    assert not any("!" in line for line in seen.values())
    assert not any(">2" in line for time, line in seen.items() if int(time) >= 3000)


def test_who_was_away_itself_accuses_nobody_of_that_time(play):
    """Stopped, or asleep: what the others sent meanwhile is read after the first look."""
    seen = play(1000, 2000, 600_000, 600_020, "603000=1", 605_000, 609_999, 610_021)
    assert not any("!" in seen[time] for time in ("600000", "600020", "605000", "609999"))
    assert "!2" in seen["610021"]
    assert "!1" not in seen["610021"]


def test_engines_of_hosts_that_have_nothing_to_say_hear_each_other():
    def body(rank):
        for _ in range(2):
            value, total = np.full(5, rank.rank + 1.0), np.zeros(5)
            rank.engine.wait(rank.start(0, "x", value, total, op=SUM))
            assert total.tolist() == [6.0] * 5
            time.sleep(1.5)

    with engines(3, {"peer_timeout": 0.5}, [0, 0, 1]) as ranks:
        in_threads(ranks, body)
