"""The benchmark's arithmetic, tables, arguments and launching; what it measures is tried in tests/parallel/test_bench.py."""

import sys
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from hvdlite.bench import keras_training, launch, measure, report, tables
from hvdlite.bench.__main__ import _check, _parser, main
from hvdlite.bench.collectives import DEFAULT_SIZES, effort_of
from hvdlite.bench.machine import aligned_zeros, last_level_cache
from hvdlite.bench.measure import Effort
from hvdlite.bench.models import resnet50_shapes
from hvdlite.bench.others import Taken, shares
from hvdlite.bench.peers import PEERS, installed
from hvdlite.bench.team import contribution, expected_sum
from hvdlite.bench.world import cores_per_rank
from hvdlite.launcher.mpirun import Mpirun

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


@pytest.mark.parametrize(
    ("path", "two", "four"),
    [
        ("floor", 2.0, 2.0),
        ("private", 4.0, 4.5),
        ("packed", 5.5, 5.25),
        ("mpi_single_copy", 3.5, 5.25),
        ("mpi_two_copies", 4.5, 6.75),
        ("horovod", 10.5, 12.75),
    ],
)
def test_issued_loads_and_stores(path, two, four):
    assert (report.ISSUED[path](2), report.ISSUED[path](4)) == (two, four)


def test_the_bound_follows_from_a_copy_by_all_ranks():
    assert report.bound_seconds("floor", 2, 3.5e-3) == 3.5e-3
    assert report.bound_seconds("private", 2, 3.5e-3) == 7e-3
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


def test_a_strategy_of_tensorflow_has_processes_of_its_own():
    assert keras_training.teams(["none", "hvdlite", "mirrored"]) == [["none", "hvdlite"], ["mirrored"]]
    assert keras_training.teams(["mirrored"]) == [["mirrored"]]


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


@pytest.mark.parametrize("text", ["0", "6", "-4", "4X", "", "M"])
def test_bad_sizes_are_refused(text):
    with pytest.raises(ValueError, match=r"size|invalid literal"):
        report.parse_bytes(text)


def test_the_tables_compare_and_name_the_absent():
    records = [
        RUN,
        {"record": "peer", "peer": "horovod", "absent": "it is not installed", "version": ""},
        {"record": "peer", "peer": "mpi4py", "absent": None, "version": "Some MPI 7"},
        *group(hvdlite=[[2e-3], [4e-3]], mpi4py=[[1e-3], [8e-3]], memcpy=[[1.5e-3], [1.5e-3]]),
    ]
    text = tables.tables(records)
    assert "Not there: horovod (it is not installed)." in text
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
    said = "Meanwhile other processes had 2.0% of the processors, and the hypervisor's other guests 0.0%."
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


# --- effort -----------------------------------------------------------------------------------------------------------


def test_short_calls_are_timed_back_to_back():
    effort = Effort(sample_seconds=50e-6, most_calls=100)
    assert [measure.calls_per_sample(seconds, effort) for seconds in (1e-3, 50e-6, 1.1e-6, 0.1e-6)] == [1, 1, 46, 100]


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_sums_of_sums_stay_finite(ranks):
    assert 16.0 * float(ranks) ** effort_of("warm", ranks).most_calls < 3e38


def test_cold_samples_are_single_calls():
    assert measure.calls_per_sample(1e-6, effort_of("cold", 2)) == 1


def rounds(each, seconds):
    """How many rounds are made that take so long each."""
    effort = Effort(0, 1, most_rounds=40)
    return next(done for done in range(100) if not measure.another_round(done, done * each, seconds, effort))


def test_rounds_fill_the_time():
    assert [rounds(0.4, seconds) for seconds in (100.0, 4.1, 0.61, 0.3, 0.1)] == [40, 11, 3, 2, 1]


def test_no_peer_keeps_its_place_or_its_neighbour():
    orders = [measure.order_of_round(number, 4) for number in range(8)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert [sorted(order[place] for order in orders) for place in range(4)] == [[0, 0, 1, 1, 2, 2, 3, 3]] * 4
    followers = {order[order.index(0) + 1] for order in orders if order[-1] != 0}
    assert len(followers) > 1


# --- the machine and the ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("affinities", "rank", "cores"),
    [([[0], [1]], 1, 1), ([[0, 1], [0, 1]], 0, 1), ([[0, 1], [2, 3]], 1, 2), ([[0, 1, 2, 3]] * 2, 0, 2), ([[0]] * 3, 2, 1)],
)
def test_cores_are_shared_fairly(affinities, rank, cores):
    assert cores_per_rank(affinities, rank) == cores


def test_the_last_level_cache_has_a_size():
    assert last_level_cache() >= 256 << 10


@pytest.mark.parametrize("shape", [1, 1000, 1 << 20, (3, 5), ()])
def test_arrays_begin_with_a_cache_line(shape):
    array = aligned_zeros(shape)
    assert array.dtype == np.float32
    assert array.shape == np.empty(shape).shape
    assert array.ctypes.data % 64 == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert not array.any()


def test_sums_can_only_be_right_if_every_rank_took_part():
    sums = [expected_sum(ranks, 1000) for ranks in (1, 2, 3)]
    assert sums[1].tolist() == (contribution(0, 1000) + contribution(1, 1000)).tolist()
    assert all((sums[2] != other).any() for other in (sums[0], sums[1], contribution(2, 1000) * 3))


def test_resnet50_has_161_parameters():
    shapes = resnet50_shapes()
    assert len(shapes) == 161
    assert sum(map(prod, shapes)) == 25_557_032
    assert (shapes[0], shapes[-1]) == ((1000,), (64, 3, 7, 7))


def test_absent_peers_say_why(monkeypatch):
    assert installed("json", "") is None
    assert installed("horovod_of_nobody.torch", "pip install it") == "horovod_of_nobody.torch is not installed (pip install it)"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert PEERS["gloo"].missing() == PEERS["horovod"].missing() == "torch is not installed (pip install torch)"
    assert {"hvdlite", "hvdlite-out", "mpi4py"} <= {name for name, kind in PEERS.items() if kind.missing() is None}


# --- the command line -------------------------------------------------------------------------------------------------


def test_each_mpirun_gets_its_own_words():
    ours = launch.mpirun_command(Mpirun("mpirun", "openmpi", (5, 0, 11)), 4, "core", root=True)
    assert " ".join(ours) == "mpirun --allow-run-as-root --oversubscribe --bind-to core:overload-allowed -n 4"
    unbound = launch.mpirun_command(Mpirun("mpirun", "openmpi"), 2, "none", root=False)
    assert " ".join(unbound) == "mpirun --oversubscribe --bind-to none -n 2"
    theirs = launch.mpirun_command(Mpirun("mpirun", "mpich", (4, 2)), 2, "core", root=True)
    assert " ".join(theirs) == "mpirun -bind-to core -n 2"


def test_ranks_are_started_by_the_mpirun_of_the_loaded_mpi(monkeypatch, tmp_path):
    """As the launcher finds it, and not by the first one on PATH."""
    log, program = tmp_path / "log", tmp_path / "mpirun.right"
    program.write_text(f'#!/bin/sh\necho "$@" > {log}\n')
    program.chmod(0o755)
    monkeypatch.setattr(launch.mpirun, "find", lambda: Mpirun(str(program), "mpich"))
    launch.start(2, "none", ["collectives", "--sizes", "4"])
    assert log.read_text() == f"-bind-to none -n 2 {sys.executable} -m hvdlite.bench collectives --sizes 4\n"
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(launch.LaunchError, match="the ranks ended with status 3"):
        launch.start(2, "none", ["collectives"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["collectives", "--sizes", "4,6"], "'6' is no size for float32"),
        (["collectives", "--peers", "nccl"], "nccl: not among hvdlite, "),
        (["training", "--models", "vgg"], "vgg: not among mlp25m, "),
        (["collectives", "--bind", "socket"], "invalid choice: 'socket'"),
        (["training", "--framework", "mxnet"], "invalid choice: 'mxnet'"),
    ],
)
def test_wrong_arguments_are_explained(capsys, words, said):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [(["-n", "3"], "has started 2 ranks"), (["--bind", "core"], "which binds them")])
def test_ranks_of_a_launcher_are_not_started_again(monkeypatch, capsys, words, said):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        main(["collectives", *words])
    assert said in capsys.readouterr().err


def test_what_is_missing_is_said_before_anything_runs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match="2"):
        main(["training"])
    assert "torch is not installed (pip install 'hvdlite[torch]')" in capsys.readouterr().err


def test_cuda_tensors_need_a_gpu(monkeypatch, capsys):
    for version, found, said in [
        (None, False, "was built without CUDA"),
        ("13.0", False, "torch finds no GPU on this machine"),
    ]:
        torch = SimpleNamespace(
            __version__="2.0",
            version=SimpleNamespace(cuda=version),
            cuda=SimpleNamespace(is_available=lambda found=found: found),
        )
        monkeypatch.setitem(sys.modules, "torch", torch)
        monkeypatch.setattr("hvdlite.bench.cuda_collectives.installed", lambda *words: None)
        with pytest.raises(SystemExit, match="2"):
            main(["collectives", "--device", "cuda"])
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], (["hvdlite", "hvdlite-out", "nccl"], ["allreduce", "gradients", "small"], 160, 1 << 28)),
        (
            ["--peers", "nccl,gloo", "--cases", "idle,small", "--tensors", "7", "--sizes", "1M"],
            (["nccl"], ["small"], 7, 1 << 20),
        ),
    ],
)
def test_cuda_tensors_have_defaults_of_their_own(monkeypatch, words, found):
    parser = _parser()
    options = parser.parse_args(["collectives", "--device", "cuda", *words])
    monkeypatch.setattr("hvdlite.bench.cuda_collectives.no_gpu", lambda: None)
    _check(parser, options)
    assert (options.peers, options.cases, options.tensors, max(options.sizes)) == found


def test_peers_that_have_no_cuda_tensors(monkeypatch, capsys):
    monkeypatch.setattr("hvdlite.bench.cuda_collectives.no_gpu", lambda: None)
    with pytest.raises(SystemExit, match="2"):
        main(["collectives", "--device", "cuda", "--peers", "gloo"])
    assert "--device cuda has only hvdlite, hvdlite-out, nccl for --peers" in capsys.readouterr().err


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


def test_a_file_that_is_not_there_is_an_error_in_one_line(capsys):
    assert main(["table", "nowhere.jsonl"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
