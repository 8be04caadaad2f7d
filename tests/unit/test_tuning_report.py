"""What a tuning says about itself: the table, the evidence in the file, the CSV."""

import csv

import pytest

from hvdlite.tuning.place import JobPlace
from hvdlite.tuning.report import Report, format_settings, to_csv, to_evidence, to_text
from hvdlite.tuning.search import Comparison, SearchResult

PLACE = JobPlace(("a CPU", "a CPU"), (8, 8), (4, 4), False, "openmpi", "auto", False)
DEFAULTS = {"tile_bytes": 256 << 10, "spin_us": -1.0}
WINNER = {**DEFAULTS, "tile_bytes": 64 << 10}


def compared(candidate, gain, rounds=12, better=False):
    gains = [gain + 0.001 * (number % 3) for number in range(rounds)]
    return Comparison(DEFAULTS, candidate, gains, [[value] for value in gains], better)


def report(confirmed=True, same_bits=True, left_out=(), complete=True, load=0.4):
    trials = [compared({**DEFAULTS, "spin_us": 50.0}, -0.3, 3), compared(WINNER, 0.1, better=True)]
    chosen = WINNER if confirmed else DEFAULTS
    validation = compared(WINNER, 0.1 if confirmed else 0.0, 24, better=confirmed)
    return Report(
        PLACE, SearchResult(dict(chosen), DEFAULTS, trials, validation, complete), ["this"], left_out, same_bits, 1.25, load
    )


def test_the_table_says_what_was_tried_and_taken():
    lines = to_text(report()).splitlines()
    assert lines[0] == "8 ranks on 2 hosts, a CPU, 8 cores a host, openmpi"
    assert lines[4].split() == ["spin_us", "-1.0", "50.0", "-34.9", "%", "-", "3"]
    assert lines[5].split() == ["tile_bytes", "256KiB", "64KiB", "+9.6", "%", "0.1", "%", "12", "taken"]
    assert lines[-3].split()[:6] == ["the", "winner,", "compared", "with", "the", "defaults"]
    assert lines[-2:] == ["tile_bytes: 256KiB -> 64KiB", "the bits of the sums that were compared are those of the defaults"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"confirmed": False}, "this comparison does not confirm that the winner is faster: the defaults stay"),
        ({"same_bits": False}, "are NOT those of the defaults (--any-bits allowed that)"),
        ({"left_out": ["segment_bytes"]}, "left out, since they may change the last bits of sums: segment_bytes"),
        ({"load": 7.25}, "the machine was busy (load 7.2 for each core): this tuning suits a machine that is as busy"),
        ({"complete": False}, "the time did not suffice to try all values"),
    ],
)
def test_what_a_reader_must_know_is_said(changes, said):
    assert said not in to_text(report())
    assert said in to_text(report(**changes))


def test_without_a_winner_the_defaults_are_said_to_stay():
    nothing = Report(PLACE, SearchResult(DEFAULTS, DEFAULTS), ["this"], [], True, 1.0)
    assert to_text(nothing).splitlines()[-1] == "nothing is better than the defaults"
    assert nothing.settings == {}


def test_the_evidence_is_plain():
    found = to_evidence(report())
    assert [trial["better"] for trial in found["trials"]] == [False, True]
    assert found["trials"][0]["settings"] == {"spin_us": 50.0}
    assert found["trials"][0]["noise"] is None  # three rounds have no quartiles
    assert found["validation"]["rounds"] == 24
    assert found["seconds"] == 1.2


def test_the_csv_has_a_line_for_each_comparison(tmp_path):
    path = tmp_path / "log.csv"
    to_csv(path, report())
    rows = list(csv.DictReader(path.open()))
    assert [row["parameter"] for row in rows] == ["spin_us", "tile_bytes", ""]
    assert (rows[1]["from"], rows[1]["to"], rows[1]["taken"]) == ("262144", "65536", "1")
    assert float(rows[1]["gain"]) == pytest.approx(0.096, abs=0.001)


def test_settings_in_words():
    assert format_settings({"tile_bytes": 1 << 20, "fusion_threshold": 0, "spin_us": 0.0}) == (
        "tile_bytes=1MiB, fusion_threshold=0, spin_us=0.0"
    )
