"""The launcher's flags and its command line; where, by what and how ranks end is in test_launcher_{hosts,lines,output}.py."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.job import job_environment

from hvdlite.errors import InvalidArgumentError
from hvdlite.knobs import KNOBS, MEANINGLESS
from hvdlite.launcher import cli, doctor, flags, tune

# --- flags --------------------------------------------------------------------------------------------------------------


def settings(*given):
    return flags.settings(cli.make_parser().parse_args(["run", *given, "python", "x.py", "--fusion-threshold", "1"]))


def test_every_knob_has_a_flag():
    for knob in KNOBS:
        value = {"bytes": "1MiB", "bool": "1", "choice": knob.choices[-1] if knob.choices else ""}.get(knob.kind, "7")
        flag = f"--{knob.name.replace('_', '-')}"
        words = [flag] if flag in ("--autotune", "--timeline-mark-cycles") else [flag, value]  # as horovodrun has them
        assert settings(*words) == ({knob.variable: value}, [])


@pytest.mark.parametrize(
    ("given", "variables"),
    [
        (["--fusion-threshold-mb", "32"], {"HVDLITE_FUSION_THRESHOLD": str(32 << 20)}),
        (["--fusion-threshold-mb", "0.5"], {"HVDLITE_FUSION_THRESHOLD": str(1 << 19)}),
        (["--cycle-time-ms", "3.5"], {"HVDLITE_CYCLE_TIME": "3.5"}),
        (["--cache-capacity", "9"], {"HVDLITE_CACHE_CAPACITY": "9"}),
        (["--disable-cache"], {"HVDLITE_CACHE_CAPACITY": "0"}),
        (["--log-level", "FATAL"], {"HVDLITE_LOG_LEVEL": "error"}),
        (["--log-hide-timestamp"], {"HVDLITE_LOG_TIMESTAMPS": "0"}),
        (["--log-with-timestamp"], {"HVDLITE_LOG_TIMESTAMPS": "1"}),
        (["--autotune"], {"HVDLITE_AUTOTUNE": "1"}),
        (["--no-autotune", "--no-timeline-mark-cycles"], {"HVDLITE_AUTOTUNE": "0", "HVDLITE_TIMELINE_MARK_CYCLES": "0"}),
        (["--autotune-warmup-samples", "4"], {"HVDLITE_AUTOTUNE_WARMUP_SAMPLES": "4"}),
        (["--no-torus-allreduce"], {}),
        (["--no-stall-check"], {"HVDLITE_STALL_CHECK_DISABLE": "1"}),
    ],
)
def test_flags_of_horovodrun(given, variables):
    assert settings(*given) == (variables, [])


def test_flags_of_horovodrun_without_effect_are_named():
    variables, warnings = settings("--hierarchical-allreduce", "--num-nccl-streams", "2")
    assert variables == {}
    assert warnings[0].startswith("--hierarchical-allreduce has no effect: ")
    assert warnings[1].startswith("--num-nccl-streams has no effect: ")


def test_every_flag_of_horovodrun_has_a_knob_or_a_reason():
    known = {knob.horovod for knob in KNOBS} | set(MEANINGLESS)
    assert [flag.variable for flag in flags.HOROVODRUN if flag.variable not in known] == []


@pytest.mark.parametrize("given", [["--fusion-threshold-mb", "lots"], ["--cycle-time", "soon"], ["--gpu-route", "bus"]])
def test_a_bad_value_is_refused_before_anything_starts(given):
    with pytest.raises(InvalidArgumentError, match=rf"{given[0]} {given[1]}: \w+ is "):
        settings(*given)


@pytest.mark.parametrize("names", flags.REFUSED)
def test_what_is_not_offered_is_refused_with_the_reason(names, capsys):
    count, reason = flags.REFUSED[names]
    for name in names:
        with pytest.raises(SystemExit) as caught:
            cli.main(["run", "-n", "2", name, *["1"] * count, "python", "x.py"])
        assert caught.value.code == 2
        assert f"{name} is not offered: {reason}" in capsys.readouterr().err


HOROVODRUN = """
    -np --num-proc -cb --check-build --disable-cache --start-timeout --network-interfaces --network-interface
    --output-filename --verbose --config-file -p --ssh-port -i --ssh-identity-file --fusion-threshold-mb --cycle-time-ms
    --cache-capacity --hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather --no-hierarchical-allgather
    --torus-allreduce --no-torus-allreduce --autotune --no-autotune --autotune-log-file --autotune-warmup-samples
    --autotune-steps-per-sample --autotune-bayes-opt-max-samples --autotune-gaussian-process-noise --min-np --min-num-proc
    --max-np --max-num-proc --slots-per-host --elastic-timeout --reset-limit --blacklist-cooldown-range --timeline-filename
    --timeline-mark-cycles --no-timeline-mark-cycles --no-stall-check --stall-check --stall-check-warning-time-seconds
    --stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable --mpi-args --tcp --binding-args
    --num-nccl-streams --thread-affinity --gloo-timeout-seconds --log-level --log-with-timestamp --log-without-timestamp
    --log-hide-timestamp --no-log-hide-timestamp -prefix-timestamp --prefix-output-with-timestamp -H --hosts -hostfile
    --hostfile --host-discovery-script --gloo --mpi --jsrun
"""


def test_every_flag_of_horovodrun_is_known():
    from hvdlite.launcher.completion import subparsers

    known = {name for action in subparsers(cli.make_parser())["run"]._actions for name in action.option_strings}
    assert not [name for name in HOROVODRUN.split() if name not in known]


def test_every_flag_of_horovodrun_is_in_the_guide():
    page = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text().split("## horovodrun")[1].split("\n## ")[0]
    # A --no- form is under the flag that it denies.
    missing = [
        name for name in HOROVODRUN.split() if f"`{name}`" not in page and f"`{name.replace('--no-', '--')}`" not in page
    ]
    assert not missing


def test_the_manifest_for_kubernetes():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((Path(__file__).parents[2] / "examples" / "kubernetes" / "mpijob.yaml").read_text())
    parts = {role: part["template"]["spec"]["containers"][0] for role, part in job["spec"]["mpiReplicaSpecs"].items()}
    assert parts["Launcher"]["command"] == ["hvdlite", "run"]
    arguments = cli.make_parser().parse_args(["run", *parts["Launcher"]["args"]])
    assert arguments.hostfile == "/etc/mpi/hostfile"
    assert arguments.command[0] == "python"
    assert parts["Worker"]["volumeMounts"][0]["mountPath"] == "/dev/shm"


# --- the command line ---------------------------------------------------------------------------------------------------


def test_the_program_to_start(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    assert cli.program_of(["--", "python", "train.py", "--", "-n"]) == [sys.executable, "train.py", "--", "-n"]
    assert cli.program_of([str(script), "x"]) == [sys.executable, str(script), "x"]
    assert cli.program_of(["bash", "-c", "x"]) == ["bash", "-c", "x"]


def hvdlite(*given, **environ):
    return subprocess.run(
        [sys.executable, "-m", "hvdlite", *given],
        env={**job_environment(), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_dry_run_prints_the_line_and_starts_nothing(tmp_path):
    done = hvdlite(
        "run", "-n", "2", "--dry-run", "-x", "A=b c", "--mpi-args", "--mca btl '^openib'", "sh", "-c", f"touch {tmp_path}/x"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("env 'A=b c' /")
    assert "sh -c 'touch" in done.stdout
    assert "it belongs to" in done.stderr or "it is the first" in done.stderr
    assert not (tmp_path / "x").exists()


def test_tune_starts_its_program_as_run_does(capsys):
    words = ["-n", "2", "--mpi-args", "--mca btl self", "--bind", "none", "--seconds", "5", "--output", "o.json", "--any-bits"]
    assert cli.main(["tune", *words, "--dry-run"]) == 0
    line = shlex.split(capsys.readouterr().out)
    assert line[line.index("-n") + 1] == "2"
    assert line[line.index("--mca") : line.index("--mca") + 3] == ["--mca", "btl", "self"]
    program = ["-m", "hvdlite.autotune", "--seconds", "5.0", "--output=o.json", "--any-bits"]
    assert line[-len(program) - 1 :] == [sys.executable, *program]
    for wrong in ("0", "inf", "soon"):
        with pytest.raises(SystemExit):
            cli.main(["tune", "--seconds", wrong])


def test_tune_passes_on_the_flags_that_differ_from_their_defaults():
    given = ["-np", "2", "--launcher", "auto", "--mpi-args=-x A", "-p", "7", "--network-interface", "a,b", "--verbose"]
    words = tune.command(cli.make_parser().parse_args(["tune", *given]))
    passed = ["--num-proc=2", "--mpi-args=-x A", "--ssh-port=7", "--network-interfaces=a,b", "--verbose"]
    assert words[: words.index("python")] == ["run", "--no-tag-output", *passed]
    assert words[words.index("python") + 1 :] == ["-m", "hvdlite.autotune", "--seconds", "60.0"]


def test_tune_link_starts_its_program_with_plain_numbers(capsys):
    assert cli.main(["tune", "--link", "-n", "2", "--parameters", "11.2M", "--step-time", "30ms", "--dry-run"]) == 0
    line = shlex.split(capsys.readouterr().out)
    program = ["-m", "hvdlite.link_tuning", "--seconds", "60.0", "--parameters", "11200000", "--step-time", "0.03"]
    assert line[-len(program) - 1 :] == [sys.executable, *program]
    for given, said in (
        (["--link", "--parameters", "5"], "give the size of the model and the time of a step"),
        (["--step-time", "1s"], "--parameters and --step-time need --link"),
        (["--link", "--parameters", "5", "--step-time", "1s", "--any-bits"], "leave out --output and --any-bits"),
    ):
        assert cli.main(["tune", *given]) == 2
        assert said in capsys.readouterr().err
    for given, said in (
        (["--parameters", "many"], "is not a number of parameters: write it as"),
        (["--parameters", "0"], "is not a number of parameters"),
        (["--step-time", "30"], "is not a duration: write it with its unit"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["tune", "--link", *given])
        assert said in capsys.readouterr().err


def test_mistakes_on_the_command_line(capsys):
    for given, said in (
        (["run", "-n", "2"], "name the program to start"),
        (["run", "python", "x.py"], "give the number of ranks"),
        (["run", "-n", "0", "python"], "'0' is not a whole number above 0"),
        (["run", "-n", "2", "--cycle-time", "x", "python"], "--cycle-time x: cycle_time is a number"),
        (["run", "-n", "2", "--mpi-args", "it's", "x"], "--mpi-args it's: No closing quotation"),
        (["run", "-n", "2", "--fusion-threshold-mb", "inf", "x"], "--fusion-threshold-mb inf: fusion_threshold is a whole"),
        (["run", "-n", "2", "-x", "=v", "x"], "-x =v names no variable: write -x NAME or -x NAME=VALUE"),
        (["run", "-n", "2", "--grace", "nan", "x"], "--grace: 'nan' is not a number of seconds above 0"),
        (["run", "-n", "2", "--output-filename", "/proc/x", "x"], "copied to /proc/x: /proc/x cannot be made: No such file"),
        (["run", "-n", "2", "--spares", "2", "--min-np", "3", "x"], "--min-np 3: this is more than the 2 ranks"),
        (["-n", "2", "python", "my x.py"], "this starts ranks: hvdlite run -n 2 python 'my x.py'"),
        (["train.py"], "this starts ranks: hvdlite run train.py"),
        (["run", "-n", "2", "--start-timeout", "nan", "true"], "'nan' is not a number of seconds above 0"),
        (["tune", "-n", "2", "--seconds", "long"], "'long' is not a number of seconds above 0"),
        (["top", "--interval", "short"], "'short' is not a number of seconds above 0"),
        ([], "required: subcommand"),
    ):
        try:
            status = cli.main(given)
        except SystemExit as ended:
            status = ended.code
        assert status == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert said in captured.err


def test_a_reader_that_ends_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hvdlite", "doctor", "--no-smoke", "--no-frameworks"]
    done = subprocess.run(command, env=job_environment(), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_ctrl_c_ends_any_subcommand_without_a_traceback(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", interrupted)
    assert cli.main(["doctor"]) == 130


def test_help_loads_neither_mpi_nor_a_framework_nor_the_engine():
    heavy = {"mpi4py", "numpy", "torch", "tensorflow", "keras", "jax", "hvdlite._engine", "hvdlite.runtime", "asyncio"}
    text = (
        "import sys\nfrom hvdlite.launcher import cli, functions\n"
        "try:\n    cli.main(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set({sorted(heavy)!r}) & sys.modules.keys()), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], env=job_environment(), capture_output=True, text=True, timeout=60)
    assert done.stderr == "[]\n"
    for said in ("--fusion-threshold ", "--network-interfaces", "knobs:", "flags of horovodrun:"):
        assert said in done.stdout
