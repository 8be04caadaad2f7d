"""The benchmark's arithmetic: from measured times to records, files, tables and pictures."""

import pytest

from hvdlite.bench import report, tables
from hvdlite.bench.__main__ import main
from hvdlite.bench.collectives import DEFAULT_SIZES
from hvdlite.bench.others import Taken, shares

MIB = 1 << 20

# --- statistics -------------------------------------------------------------------------------------------------------


def test_summary():
    assert report.summary([3.0, 1.0, 2.0, 10.0]) == {"median": 2.5, "min": 1.0, "max": 10.0}


def test_bandwidths_are_those_of_nccl_tests():
    assert report.bandwidths(64 * MIB, 2, 0.5) == {"algbw": 128.0 * MIB, "busbw": 128.0 * MIB}
    assert report.bandwidths(64 * MIB, 4, 0.5) == {"algbw": 128.0 * MIB, "busbw": 192.0 * MIB}
    assert report.bandwidths(64 * MIB, 1, 0.5)["busbw"] == 0


def test_ratios_pair_the_rounds():
    # In the second round the machine was ten times slower for both: that is no difference between them.
    assert report.ratios([2.0, 30.0, 4.0], [1.0, 10.0, 1.0]) == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert report.overheads([1.5, 11.0], [1.0, 10.0]) == pytest.approx({"median": 30.0, "min": 10.0, "max": 50.0})


def test_the_bound_follows_from_a_copy_by_all_ranks():
    assert report.bound_seconds(2, 3.5e-3) == 7e-3
    assert report.bound_seconds(4, 4.0) == 9.0
    reached = report.percentages(4.375e-3, 2, {"memcpy": 3.5e-3, "rewrite": 1.75e-3})
    assert reached == pytest.approx({"percent_of_memcpy": 80.0, "percent_of_rewrite": 40.0, "percent_of_bound": 160.0})
    assert report.percentages(1.0, 2, {}) == {}


# --- records ----------------------------------------------------------------------------------------------------------

RUN = {
    "record": "run",
    "ranks": 2,
    "hosts": 1,
    "bind": "core",
    "cpus": 2,
    "cpu": "a CPU",
    "knobs": {},
    "versions": {"hvdlite": "1"},
}
COMMON = {"bytes": MIB, "ranks": 2, "bind": "core", "cache": "warm"}


def group(**rounds):
    return report.with_percentages([report.measurement("allreduce", peer, rounds[peer], 1, **COMMON) for peer in rounds])


def test_a_measurement_keeps_what_is_needed_to_compare_it():
    record = report.measurement("allreduce", "hvdlite", [[1.0, 3.0, 2.0], [4.0, 4.0, 5.0]], 7, **COMMON)
    assert record == {
        "record": "measurement",
        "case": "allreduce",
        "peer": "hvdlite",
        **COMMON,
        "median": 3.5,
        "min": 1.0,
        "max": 5.0,
        "samples": 6,
        "calls": 7,
        "rounds": [2.0, 4.0],
        "algbw": MIB / 3.5,
        "busbw": MIB / 3.5,
    }


def test_records_survive_the_file_to_six_digits():
    [record] = report.read_lines([report.to_line({"a": 1.23456789e-7, "b": [2 / 3], "c": None, "d": {"e": 3}}), ""])
    assert record == {"a": 1.23457e-7, "b": [0.666667], "c": None, "d": {"e": 3}}


def test_percentages_come_from_the_ceilings_of_the_same_group():
    ours, memcpy = group(hvdlite=[[4.0]], memcpy=[[2.0]])
    assert (ours["percent_of_memcpy"], ours["percent_of_bound"]) == (50.0, 100.0)
    assert "percent_of_memcpy" not in memcpy


def test_overheads_are_against_the_training_without_communication():
    steps = {"none": [[1.0], [2.0]], "hvdlite": [[1.1], [2.4]]}
    records = report.with_percentages([report.measurement("training", peer, rounds, 5) for peer, rounds in steps.items()])
    assert "overhead_percent" not in records[0]
    assert records[1]["overhead_percent"] == pytest.approx({"median": 15.0, "min": 10.0, "max": 20.0})


def test_jobs_in_turn_are_rounds_of_one_run():
    def job(peer, *rounds):
        more = {"model": "convnet", "loop": "tape", "ranks": 2, "bind": "core", "gradient_bytes": 8}
        taken = report.measurement("training", peer, [[value] for value in rounds], 3, **more)
        return [RUN, {"record": "peer", "peer": peer, "absent": None, "version": ""}, taken]

    jobs = [job("none", 1.0, 3.0), job("hvdlite", 3.0), job("hvdlite", 8.0), job("none", 4.0)]
    run, _, _, base, ours = report.joined(jobs)
    assert run == RUN
    assert (base["rounds"], ours["rounds"]) == ([2.0, 4.0], [3.0, 8.0])
    assert ours["overhead_percent"] == pytest.approx({"median": 75.0, "min": 50.0, "max": 100.0})
    assert (ours["loop"], ours["gradient_bytes"], ours["samples"]) == ("tape", 8, 2)
    assert "convnet, a tf.function with a tape" in tables.tables([run, base, ours])


def test_what_an_operation_adds_is_in_the_table():
    more = {"tensors": 160, "ranks": 1, "bind": "core"}
    seconds = {"baseline": [[1e-6], [2e-6]], "hvdlite": [[2.5e-6], [4e-6]]}
    records = [report.measurement("tensorflow_ops", peer, rounds, 5, **more) for peer, rounds in seconds.items()]
    [line] = [line for line in tables.tables([RUN, *records]).splitlines() if line.startswith("| hvdlite")]
    assert [cell.strip() for cell in line.split("|")[2:-1]] == ["3.25 (2.50..4.00) µs", "+1.75 (+1.50..+2.00) µs"]


def test_what_handing_over_costs_is_in_the_tables():
    more = {"tensors": 100, "ranks": 2, "bind": "core"}
    cases = {"submission": {"hvdlite": [[5e-6]]}, "submission_submit": {"hvdlite": [[4e-6], [2e-6], [3e-6]]}}
    cases["backward"] = {"none": [[1e-6], [2e-6]], "hooks": [[1.5e-6], [4e-6]]}
    records = [
        report.measurement(case, peer, rounds, 1, **more) for case, taken in cases.items() for peer, rounds in taken.items()
    ]
    lines = [line.split("|")[1:-1] for line in tables.tables([RUN, *records]).splitlines() if line.startswith("| h")]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["hvdlite", "3.00 (2.00..4.00) µs", "5.00 (5.00..5.00) µs"],
        ["hooks", "2.75 (1.50..4.00) µs", "+1.25 (+0.50..+2.00) µs"],
    ]


# --- numbers for people -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.123e-6, "123 ns"),
        (1.5e-6, "1.50 µs"),
        (12.34e-6, "12.3 µs"),
        (0.9996e-3, "1.00 ms"),
        (2.0, "2.00 s"),
        (0.0, "0.00 ns"),
    ],
)
def test_times_have_three_digits(seconds, text):
    assert report.format_seconds(seconds) == text


def test_sizes_are_written_as_they_are_read():
    assert [report.format_bytes(size) for size in (4, 64 << 10, 64 * MIB, 102_228_128)] == [
        "4 B",
        "64 KiB",
        "64 MiB",
        "97.5 MiB",
    ]
    assert [report.parse_bytes(report.short_bytes(size)) for size in DEFAULT_SIZES] == list(DEFAULT_SIZES)
    assert DEFAULT_SIZES[0] == 4
    assert DEFAULT_SIZES[-1] == 64 * MIB


@pytest.mark.parametrize("text", ["0", "6", "-4", "4X", "1.5M", "abc", "", "M"])
def test_bad_sizes_are_refused(text):
    with pytest.raises(ValueError, match="is not a size"):
        report.parse_bytes(text)


def test_the_tables_compare_and_name_the_absent():
    records = [
        RUN,
        {"record": "peer", "peer": "horovod", "absent": "it is not installed", "version": ""},
        {"record": "peer", "peer": "mpi4py", "absent": None, "version": "Some MPI 7"},
        *group(hvdlite=[[2e-3], [4e-3]], mpi4py=[[1e-3], [8e-3]], memcpy=[[1.5e-3], [1.5e-3]]),
    ]
    text = tables.tables(records)
    assert "Not measured: horovod (it is not installed)." in text
    assert "Versions: mpi4py: Some MPI 7." in text
    [times] = [line for line in text.splitlines() if "3.00 (2.00..4.00) ms" in line]
    assert [cell.strip() for cell in times.split("|")[1:4]] == ["1 MiB warm", "3.00 (2.00..4.00) ms", "4.50 (1.00..8.00) ms"]
    [ratios] = [line for line in text.splitlines() if "1.25 (0.50..2.00)" in line]
    assert [cell.strip() for cell in ratios.split("|")[1:-1]] == ["1 MiB warm", "1.25 (0.50..2.00)", "50 %", "", "100 %"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ranks": 3}, "more ranks than CPUs"),
        ({"knobs": {"spin_us": 5.0}}, "Knobs: spin_us=5.0."),
        ({}, "2 ranks, bound to one core each, on a host with 2 CPUs (a CPU); hvdlite 1."),
    ],
)
def test_the_circumstances_are_mentioned(change, said):
    assert said in report.describe_run({**RUN, **change})
    assert not change or said not in report.describe_run(RUN)


def test_what_others_had_is_mentioned():
    quiet = {"record": "others", "processes": 0.02, "guests": 0.0}
    said = "Other processes took 2.0% of the processors, and the hypervisor's other guests 0.0%."
    assert said in tables.tables([RUN, quiet]).split("\n\n")
    for busy in ({"processes": 0.06}, {"guests": 0.06}):
        assert "6.0%" in report.describe_others(quiet | busy)
        assert "do not trust" in report.describe_others(quiet | busy)
        joined = report.joined([[RUN, quiet | busy], [RUN, quiet]])
        assert joined[-1] == quiet | busy


def test_shares_of_others():
    """Two ranks on one machine, one on a second; each machine has two processors and was watched for ten seconds."""
    first = [Taken(20.0, 13.0, 1.0, 6.0), Taken(20.0, 13.0, 1.0, 5.0)]
    second = Taken(20.0, 8.0, 3.0, 9.0)  # the kernel counts in ticks
    assert shares([("a", first[0]), ("b", second), ("a", first[1])]) == pytest.approx((0.1, 0.15))


# --- the command line -------------------------------------------------------------------------------------------------


def test_tables_and_pictures_of_a_file(tmp_path, capsys):
    lines = tmp_path / "run.jsonl"
    records = [RUN, *group(hvdlite=[[2e-3]], mpi4py=[[1e-3]], memcpy=[[1.5e-3]])]  # one round may be all there was time for
    lines.write_text("".join(report.to_line(record) + "\n" for record in records))
    assert main(["table", str(lines)]) == 0
    assert "| 1 MiB warm |" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    picture = tmp_path / "run.png"
    assert main(["plot", str(lines), str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(lines), str(tmp_path / "run.foo")]) == 1
    assert "run.foo cannot be drawn: Format 'foo' is not supported" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_an_error_in_one_line(capsys):
    assert main(["table", "nowhere.jsonl"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
