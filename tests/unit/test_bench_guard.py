"""`python -m hvdlite.bench guard`: statistics, the order of jobs, what is repeated and refused, on measurements made up."""

import json
import random
import sys
from pathlib import Path

import pytest

from hvdlite.bench import __main__ as bench
from hvdlite.bench import guard, others
from hvdlite.bench.guard import FIGURES, GuardPlan, Run
from hvdlite.errors import SystemFailure

THIS, OTHER = Path("/this"), Path("/other")


def made_up(this, other=1e-3, spread=0.02, loads=lambda number: 0.0):
    """measure(build) for compare(), with the figures of a job around these values, and the builds in the order of its calls."""
    draw, asked = random.Random(5), []

    def measure(build):
        asked.append(build)
        value = (this if build == THIS else other) * draw.uniform(1 - spread, 1 + spread)
        return Run(dict.fromkeys(FIGURES, value), loads(len(asked)))

    return measure, asked


def compared(measure, **options):
    said = []
    return guard.compare([THIS, OTHER], GuardPlan(**options), measure, said.append), said


def test_builds_take_turns_and_change_places():
    measure, asked = made_up(1e-3)
    records, said = compared(measure, pairs=10)
    assert asked == [THIS, OTHER, OTHER, THIS] * 5
    assert said[-1] == "10 of 10 pairs"
    assert [record["figure"] for record in records[1:]] == list(FIGURES)
    assert all(len(record[whose]) == 10 for record in records[1:] for whose in ("ours", "theirs"))


@pytest.mark.parametrize(("ratio", "found"), [(1.0, False), (1.04, False), (1.2, True), (0.8, False)])
def test_what_is_slower_lies_wholly_above_the_tolerance(ratio, found):
    records, _ = compared(made_up(1e-3 * ratio)[0])
    assert guard.slower(records, 1.05) == (list(FIGURES) if found else [])
    text = guard.table(records)
    assert text.count("| slower |") == (len(FIGURES) if found else 0)
    assert ("Slower than 1.05 times: small, large," in text) == found
    assert ("Nothing is slower" in text) != found


def test_a_ratio_that_only_seems_to_lie_above_is_tolerated():
    """The median is above, its interval is not."""
    ours = [1.0, 1.5, 0.9, 1.6, 1.4, 1.0, 0.95, 1.5, 1.6, 0.9]
    low, ratio, high = guard.interval(ours, [1.0] * 10)
    assert low < 1.05 < ratio < high
    assert guard.interval(ours, [1.0] * 10) == (low, ratio, high), "the same numbers, the same interval"
    assert not guard.slower([{"record": "guard", "figure": "small", "interval": [low, high]}], 1.05)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draw = random.Random(1)
    covered = 0
    for _ in range(60):
        drift = [draw.uniform(1, 2) for _ in range(10)]  # of the machine: it hits both of a pair
        ours = [1.1 * each * draw.gauss(1, 0.05) for each in drift]
        theirs = [each * draw.gauss(1, 0.05) for each in drift]
        low, _, high = guard.interval(ours, theirs)
        covered += low <= 1.1 <= high
    assert covered >= 50


def test_a_figure_that_is_nothing_in_both():
    assert guard.interval([0.0] * 10, [0.0] * 10) == (1.0, 1.0, 1.0)
    assert guard.interval([0.1] * 10, [0.0] * 10)[0] == float("inf")


def test_turns_with_other_load_are_measured_again():
    measure, asked = made_up(1e-3, loads=lambda number: 0.3 if number in (3, 4, 9) else 0.019)
    records, said = compared(measure)
    assert asked[1:5] == [OTHER, OTHER, OTHER, OTHER]  # the third and fourth were of no use
    assert len(asked) == 23
    assert records[0] == {
        "record": "guard_run", "this": "/this", "other": "/other",
        "repeated": 3, "load": 0.019, "pairs": 10, "tolerance": 1.05,
    }  # fmt: skip
    assert said.count("other processes and guests took 30.0% of the processors: this turn is repeated") == 3
    assert "10 jobs of each build, alternately; 3 were repeated." in guard.table(records)


def test_a_machine_that_is_never_quiet_ends_it():
    measure, asked = made_up(1e-3, loads=lambda number: 0.5)
    with pytest.raises(SystemFailure, match=r"not quiet: in 21 turns .* 50%\. End these processes .*, or use --any-load"):
        compared(measure)
    assert len(asked) == 21
    records, _ = compared(made_up(1e-3, loads=lambda number: 0.5)[0], any_load=True)
    assert (records[0]["repeated"], records[0]["load"]) == (0, 0.5)


def test_what_a_job_takes_itself_is_no_other_load(monkeypatch):
    times = iter([(1.0, 0.5, 2.0, 0.5, 0.0), (1.5, 0.5, 6.5, 0.5, 0.0)])  # the last two before the clock: of its children
    monkeypatch.setattr(others.os, "times", lambda: next(times))
    begun = others.taken()
    assert others.taken_since(begun).own == 5.0
    assert others.shares([("", others.Taken(10.0, 6.0, 0.0, 5.0))]) == pytest.approx((0.1, 0.0))
    assert others.shares([("", others.Taken(10.0, 4.9, 0.0, 5.0))]) == (0.0, 0.0), "more than the machine has counted"


# --- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path):
    """A folder that looks like a build of hvdlite."""
    (tmp_path / "hvdlite").mkdir()
    for name in ("__init__.py", "_engine.so"):
        (tmp_path / "hvdlite" / name).touch()
    return tmp_path


@pytest.mark.parametrize(("slower", "status"), [(1.0, 0), (1.5, 1)])
def test_the_command(checkout, monkeypatch, capsys, slower, status):
    builds = []

    def jobs(plan):
        measure, _ = made_up(1e-3 * slower)

        def recorded(build):
            builds.append(build)
            return measure(THIS if build != checkout else OTHER)

        return recorded

    monkeypatch.setattr(guard, "jobs", jobs)
    file = checkout / "guard.jsonl"
    assert bench.main(["guard", "--against", str(checkout), "--output", str(file)]) == status
    assert set(builds) == {checkout, Path(bench.__file__).parents[2]}
    printed = capsys.readouterr().out
    assert "an allreduce of 16 MiB in place" in printed
    assert {json.loads(line)["record"] for line in file.read_text().splitlines()} == {"guard_run", "guard"}
    assert bench.main(["table", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == printed.splitlines()[-1]


def test_what_cannot_be_compared(checkout, capsys):
    for words, said in (
        (["--against", str(checkout), "--pairs", "9"], "a comparison needs at least 10 pairs"),
        (["--against", str(checkout / "nowhere")], "has no hvdlite: name a checkout"),
    ):
        assert bench.main(["guard", *words]) == 2
        assert said in capsys.readouterr().err
    (checkout / "hvdlite" / "_engine.so").unlink()
    assert bench.main(["guard", "--against", str(checkout)]) == 2
    assert "is not built: run `make develop` there" in capsys.readouterr().err


# --- one job ------------------------------------------------------------------------------------------------------------


def job_that(checkout, text):
    """A job that is no job: one process, whose program is this text in place of an mpirun."""
    return guard._job([sys.executable, "-c", text], "pair", checkout, 0.1)


def test_a_job_without_figures_shows_its_last_words(checkout):
    with pytest.raises(SystemFailure, match=r"the job pair of .* ended with status 3 and no figures:\nno such device"):
        job_that(checkout, "import sys; sys.exit(print('no such device') or 3)")


def test_a_job_says_which_package_it_has_measured(checkout):
    """mpirun is the program here, so that sys.argv ends with the program's own words."""
    said = "{{'package': {!r}, 'figures': {{'small': 2.0}}}}"
    text = f"import json, sys; json.dump({said}, open(sys.argv[-1] + '/figures.json', 'w'))"
    inside = str(checkout / "hvdlite" / "__init__.py")
    assert job_that(checkout, text.format(inside)) == {"small": 2.0}
    with pytest.raises(SystemFailure, match=r"has imported /elsewhere/hvdlite/__init__\.py"):
        job_that(checkout, text.format("/elsewhere/hvdlite/__init__.py"))


def test_a_job_imports_the_build_first(checkout):
    said = "import os; print('first', os.environ['PYTHONPATH'].split(os.pathsep)[0])"
    with pytest.raises(SystemFailure, match=f"first {checkout}"):
        job_that(checkout, said)


def test_all_figures_come_from_a_kind_of_job_that_there_is():
    assert {figure.job for figure in FIGURES.values()} == set(guard._JOBS)
