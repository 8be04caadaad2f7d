"""The benchmark's rounds, machine, arguments and launching; what it measures is tried in tests/parallel/test_bench.py."""

import sys
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from hvdlite.bench import keras_training, launch, measure
from hvdlite.bench.__main__ import _check, _parser, main
from hvdlite.bench.collectives import effort_of
from hvdlite.bench.machine import aligned_zeros, last_level_cache
from hvdlite.bench.measure import Effort
from hvdlite.bench.models import resnet50_shapes
from hvdlite.bench.peers import PEERS, installed
from hvdlite.bench.team import contribution, expected_sum
from hvdlite.bench.world import cores_per_rank
from hvdlite.errors import SystemFailure
from hvdlite.launcher.mpirun import Mpirun

# --- processes --------------------------------------------------------------------------------------------------------


def test_a_strategy_of_tensorflow_has_processes_of_its_own():
    assert keras_training.teams(["none", "hvdlite", "mirrored"]) == [["none", "hvdlite"], ["mirrored"]]
    assert keras_training.teams(["mirrored"]) == [["mirrored"]]


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


def test_each_mpirun_gets_its_own_words(monkeypatch):
    monkeypatch.setattr(launch.os, "geteuid", lambda: 0)
    ours = launch.mpirun_command(Mpirun("mpirun", "openmpi", (5, 0, 11)), 4, "core")
    assert " ".join(ours) == "mpirun --allow-run-as-root -n 4 --oversubscribe --bind-to core:overload-allowed"
    monkeypatch.setattr(launch.os, "geteuid", lambda: 1000)
    unbound = launch.mpirun_command(Mpirun("mpirun", "openmpi"), 2, "none")
    assert " ".join(unbound) == "mpirun -n 2 --oversubscribe --bind-to none"
    theirs = launch.mpirun_command(Mpirun("mpirun", "mpich", (4, 2)), 2, "core")
    assert " ".join(theirs) == "mpirun -n 2 -bind-to core"


def test_ranks_are_started_by_the_mpirun_of_the_loaded_mpi(monkeypatch, tmp_path):
    """As the launcher finds it, and not by the first one on PATH."""
    log, program = tmp_path / "log", tmp_path / "mpirun.right"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" > {log}\n')
    program.chmod(0o755)
    monkeypatch.setattr(launch.mpirun, "find", lambda: Mpirun(str(program), "mpich"))
    launch.start(2, "none", ["collectives", "--sizes", "4"])
    assert log.read_text() == f"-n 2 -bind-to none {sys.executable} -m hvdlite.bench collectives --sizes 4\n"
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(SystemFailure, match="the ranks ended with status 3"):
        launch.start(2, "none", ["collectives"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["collectives", "--sizes", "4,6"], "'6' is not a size of float32"),
        (["collectives", "--peers", "nccl"], "nccl: not among hvdlite, "),
        (["training", "--models", "vgg"], "vgg: not among mlp25m, "),
        (["collectives", "--bind", "socket"], "invalid choice: 'socket'"),
        (["training", "--framework", "mxnet"], "invalid choice: 'mxnet'"),
        (["collectives", "-n", "0"], "'0' is not a whole number above 0"),
        (["submission", "--tensors", "-1"], "'-1' is not a whole number above 0"),
        (["messages", "-n", "1"], "messages needs at least two ranks"),
        (["messages", "--seconds", "nan"], "'nan' is not a number of seconds above 0"),
    ],
)
def test_wrong_arguments_are_explained(capsys, words, said):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["messages"], ["guard", "--against", "."]])
def test_an_output_that_cannot_be_written_is_an_error_before_anything_is_measured(capsys, tmp_path, command):
    assert main([*command, "--output", str(tmp_path / "nowhere" / "x.jsonl")]) > 0
    assert capsys.readouterr().err == f"hvdlite.bench: [Errno 2] No such file or directory: '{tmp_path}/nowhere/x.jsonl'\n"


@pytest.mark.parametrize("content", ["", "no JSON", "{}", "[1]"])
@pytest.mark.parametrize("words", [["table"], ["plot", "x.png"]])
def test_a_file_that_is_no_output_is_named(capsys, tmp_path, content, words):
    file = tmp_path / "x.jsonl"
    file.write_text(content)
    assert main([words[0], str(file), *words[1:]]) == 1
    assert f"{file} is no output of the benchmark" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "said"), [(["-n", "3"], "has started 2 ranks"), (["--bind", "core"], "leave --bind out")])
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
    assert "with --device cuda, --peers may only be hvdlite, hvdlite-out, nccl" in capsys.readouterr().err
