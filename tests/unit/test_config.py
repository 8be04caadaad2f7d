"""The table of knobs: parsing, Horovod's spellings, what ranks must agree on, and the generated page."""

import os
import re
from pathlib import Path

import pytest
from support.testing import native

from hvdlite import config, knobs
from hvdlite.config import from_environment, launcher_claim
from hvdlite.errors import InvalidArgumentError
from hvdlite.knobs import KNOBS, MEANINGLESS

ROOT = Path(__file__).parents[2]
BY_NAME = {knob.name: knob for knob in KNOBS}


def test_defaults_without_any_variable():
    found = from_environment({})
    assert found.fusion_threshold == 64 << 20
    assert found.cycle_time == 0.2
    assert found.allreduce_algorithm == "auto"
    assert found.deterministic is False
    assert found.log_timestamps is True
    assert not found.origins
    assert not found.notes
    assert not found.warnings


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("HVDLITE_FUSION_THRESHOLD", "1048576", "fusion_threshold", 1 << 20),
        ("HVDLITE_FUSION_THRESHOLD", "32 MiB", "fusion_threshold", 32 << 20),
        ("HVDLITE_FUSION_THRESHOLD", "1GiB", "fusion_threshold", 1 << 30),
        ("HVDLITE_FUSION_THRESHOLD", "0", "fusion_threshold", 0),
        ("HVDLITE_FUSION_THRESHOLD", "", "fusion_threshold", 64 << 20),
        ("HVDLITE_CYCLE_TIME", "3.5", "cycle_time", 3.5),
        ("HVDLITE_SPIN_US", "-1", "spin_us", -1.0),
        ("HVDLITE_DETERMINISTIC", "yes", "deterministic", True),
        ("HVDLITE_DETERMINISTIC", "0", "deterministic", False),
        ("HVDLITE_LOG_LEVEL", "DEBUG", "log_level", "debug"),
        ("HVDLITE_ALLREDUCE_ALGORITHM", "ring", "allreduce_algorithm", "ring"),
        ("HOROVOD_FUSION_THRESHOLD", "33554432", "fusion_threshold", 32 << 20),
        ("HOROVOD_CYCLE_TIME", "1", "cycle_time", 1.0),
        ("HOROVOD_CACHE_CAPACITY", "0", "cache_capacity", 0),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "1", "dynamic_process_sets", True),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "-1", "dynamic_process_sets", False),
        ("HOROVOD_AUTOTUNE", "1", "autotune", True),
        ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "5", "autotune_warmup_samples", 5),
        ("HOROVOD_AUTOTUNE_LOG", "a.csv", "autotune_log", "a.csv"),
        ("HOROVOD_LOG_LEVEL", "FATAL", "log_level", "error"),
        ("HOROVOD_LOG_LEVEL", "trace", "log_level", "trace"),
        ("HOROVOD_LOG_HIDE_TIME", "1", "log_timestamps", False),
        ("HOROVOD_LOG_HIDE_TIME", "0", "log_timestamps", True),
    ],
)
def test_values(variable, text, name, value):
    found = from_environment({variable: text})
    assert getattr(found, name) == value
    assert type(getattr(found, name)) is type(value)
    assert found.origins.get(name) == (variable if text else None)


def test_our_own_variable_wins_over_horovods():
    found = from_environment({"HVDLITE_CYCLE_TIME": "2", "HOROVOD_CYCLE_TIME": "7"})
    assert found.cycle_time == 2.0
    assert found.origins == {"cycle_time": "HVDLITE_CYCLE_TIME"}


@pytest.mark.parametrize(
    ("variable", "text", "accepted"),
    [
        ("HVDLITE_FUSION_THRESHOLD", "many", "whole number of bytes of at least 0, also with the suffix KiB"),
        ("HVDLITE_FUSION_THRESHOLD", "-1", "of at least 0"),
        ("HVDLITE_FUSION_THRESHOLD", "1 TiB", "MiB or GiB"),
        ("HVDLITE_FUSION_THRESHOLD", f"{1 << 33}GiB", "of at least 0"),
        ("HVDLITE_CACHE_CAPACITY", "9" * 400, "of at least 0"),
        ("HVDLITE_SEGMENT_BYTES", "0", "of at least 1"),
        ("HVDLITE_CYCLE_TIME", "nan", "number of milliseconds of at least 0"),
        ("HVDLITE_DEADLOCK_TIMEOUT", "inf", "number of seconds"),
        ("HVDLITE_CACHE_CAPACITY", "1.5", "whole number of at least 0"),
        ("HVDLITE_DETERMINISTIC", "perhaps", "0 or 1"),
        ("HVDLITE_ALLREDUCE_ALGORITHM", "tree", "one of auto, ring, direct, recursive_doubling"),
        ("HVDLITE_LOG_LEVEL", "loud", "one of trace, debug"),
        ("HOROVOD_FUSION_THRESHOLD", "64e6", "whole number of bytes"),
        ("HOROVOD_LOG_LEVEL", "verbose", "one of trace"),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "on", "whole number, above 0 for yes"),
    ],
)
def test_a_bad_value_names_variable_value_and_accepted_form(variable, text, accepted):
    with pytest.raises(InvalidArgumentError, match=re.escape(f"{variable}={text!r}")) as caught:
        from_environment({variable: text})
    assert accepted in str(caught.value)


def test_horovods_variables_without_effect_are_listed_in_one_line():
    found = from_environment(
        {"HOROVOD_GLOO_IFACE": "x", "HOROVOD_ENABLE_XLA_OPS": "1", "HOROVOD_CYCLE_TIME": "1", "HOROVOD_FOO": "y"}
    )
    (line,) = found.notes
    assert line == (
        "these variables of Horovod have no effect here: HOROVOD_ENABLE_XLA_OPS (allreduce works under XLA without it); "
        "HOROVOD_FOO (no knob of hvdlite); HOROVOD_GLOO_IFACE (Gloo is not used)"
    )
    assert not found.warnings


def test_horovods_timeline():
    assert from_environment({"HOROVOD_TIMELINE": "t.json", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}).timeline == "t.json"
    assert from_environment({"HOROVOD_TIMELINE": "DYNAMIC"}).timeline == ""


def test_horovods_stall_check():
    found = from_environment({"HOROVOD_STALL_CHECK_TIME_SECONDS": "30", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"})
    assert (found.stall_check_time_seconds, found.stall_shutdown_time_seconds) == (30.0, 90.0)
    assert not found.notes
    native = config.to_native(found)
    assert (native["stall_check_time_seconds"], native["stall_shutdown_time_seconds"]) == (30.0, 90.0)
    native = config.to_native(from_environment({"HOROVOD_STALL_CHECK_DISABLE": "1"}))
    assert (native["stall_check_time_seconds"], native["stall_shutdown_time_seconds"]) == (0.0, 0.0)


def test_a_misspelt_variable_of_horovod_is_listed_with_the_right_one():
    (line,) = from_environment({"HOROVOD_FUSION_TRESHOLD": "1"}).notes
    assert "HOROVOD_FUSION_TRESHOLD (no knob of hvdlite; did you mean HOROVOD_FUSION_THRESHOLD?)" in line


@pytest.mark.parametrize(
    "variable",
    [
        *("HOROVOD_GLOO_IFACE=", "HOROVOD_HIERARCHICAL_ALLREDUCE=0", "HOROVOD_TORUS_ALLREDUCE=0"),
        *("HOROVOD_CONTROLLER=mpi", "HOROVOD_CPU_OPERATIONS=MPI"),
        *("HOROVOD_RANK=0", "HOROVOD_HOSTNAME=node1", "HOROVOD_WITH_PYTORCH=1", "HOROVOD_GPU_OPERATIONS=NCCL"),
    ],
)
def test_nothing_is_said_of_a_variable_that_asks_for_nothing_else(variable):
    name, _, text = variable.partition("=")
    assert not from_environment({name: text}).notes
    known = name in MEANINGLESS
    assert bool(from_environment({name: "gloo"}).notes) == known


# The variables that Horovod 0.28.1 reads at run time.
HOROVODS = """
    FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER TORUS_ALLREDUCE BATCH_D2D_MEMCOPIES
    NUM_NCCL_STREAMS DISABLE_GROUP_FUSION ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS DYNAMIC_PROCESS_SETS ADASUM_MPI_CHUNK_SIZE
    AUTOTUNE AUTOTUNE_LOG AUTOTUNE_WARMUP_SAMPLES AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_BAYES_OPT_MAX_SAMPLES
    AUTOTUNE_GAUSSIAN_PROCESS_NOISE TIMELINE TIMELINE_MARK_CYCLES DISABLE_NVTX_RANGES STALL_CHECK_DISABLE
    STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS LOG_LEVEL LOG_HIDE_TIME THREAD_AFFINITY MPI_THREADS_DISABLE CONTROLLER
    CPU_OPERATIONS CCL_CACHE GLOO_IFACE GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT GLOO_TIMEOUT_SECONDS ELASTIC ELASTIC_TIMEOUT
    START_TIMEOUT SPARK_PYTHONPATH SPARK_START_TIMEOUT SPARK_USE_LOCAL_RANK_GPU_INDEX SPARK_WORK_DIR
"""


def test_every_variable_of_horovod_works_or_is_said_not_to():
    aliases = {knob.horovod for knob in KNOBS if knob.horovod}
    assert aliases | MEANINGLESS.keys() == {f"HOROVOD_{name}" for name in HOROVODS.split()}
    assert not aliases & MEANINGLESS.keys()


def test_a_misspelt_variable_of_ours_is_a_warning():
    (line,) = from_environment({"HVDLITE_FUSION_TRESHOLD": "1"}).warnings
    assert "HVDLITE_FUSION_TRESHOLD is no knob" in line
    assert "did you mean HVDLITE_FUSION_THRESHOLD?" in line


def test_the_table_is_well_formed():
    assert len(BY_NAME) == len(KNOBS)
    for knob in KNOBS:
        assert knob.doc.endswith(".")
        assert knob.horovod is None or knob.horovod not in MEANINGLESS
        assert knob.kind != "choice" or knob.default in knob.choices


def test_disagreements_name_knob_values_and_ranks():
    usual = from_environment({}).values
    other = from_environment({"HVDLITE_FUSION_THRESHOLD": "0", "HVDLITE_SPIN_US": "5"}).values
    (line,) = config.disagreements([usual, other, usual])
    assert line == "fusion_threshold (HVDLITE_FUSION_THRESHOLD) is 67108864 on ranks 0, 2, but 0 on rank 1"
    assert config.disagreements([usual, usual]) == []


def test_native_values():
    native = config.to_native(from_environment({"HVDLITE_LOG_LEVEL": "error"}))
    assert native["log_level"] == 4
    assert native["cycle_time"] == 0.2
    assert "bucket_bytes" not in native


def test_native_fields_and_defaults_are_those_of_the_engine():
    engine = pytest.importorskip("hvdlite._engine")
    assert config.to_native(from_environment({})) == engine.config_fields()
    listed = ROOT / "csrc" / "include" / "hvdlite" / "knobs.inc"
    assert listed.read_text() == knobs.to_inc(), "run: make knobs"


@pytest.mark.parametrize(
    ("kind", "name"),
    [(0, "allreduce"), (1, "allgatherv"), (2, "broadcast"), (3, "alltoallv"), (4, "reducescatter"), (5, "barrier")],
)
def test_algorithm_choices_are_those_of_the_registry(kind, name):
    assert BY_NAME[f"{name}_algorithm"].choices == ("auto", *native.algorithms(kind))


def test_the_page_of_knobs_is_up_to_date():
    page = knobs.to_markdown()
    for knob in KNOBS:
        assert f"| `{knob.variable}` |" in page
    assert (ROOT / "docs" / "knobs.md").read_text() == page, "run: make knobs"


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "2"}, 4),
        ({"PMI_SIZE": "3"}, 3),
        ({"SLURM_STEP_NUM_TASKS": "8"}, 8),
        ({"SLURM_NTASKS": "8"}, None),
        ({"HOROVOD_SIZE": "2"}, 2),
        ({"WORLD_SIZE": "2"}, None),
        ({"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}, 2),
        ({"PMI_SIZE": "?"}, None),
    ],
)
def test_what_a_launcher_claims(environ, size):
    claim = launcher_claim(environ)
    assert (claim.size if claim else None) == size


@pytest.mark.parametrize(
    ("environ", "first"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_RANK": "0", "SLURM_PROCID": "1"}, True),
        ({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "0"}, False),
        ({"PMI_RANK": "2"}, False),
    ],
)
def test_who_is_first_by_the_launchers_word(environ, first):
    assert config.is_first_process(environ) is first


def test_variables_for_a_while(monkeypatch):
    monkeypatch.setenv("HVDTEST_A", "old")
    monkeypatch.delenv("HVDTEST_B", raising=False)
    with pytest.raises(KeyError), config.environment(HVDTEST_A="new", HVDTEST_B="b", HVDTEST_C=None):  # noqa: PT012
        assert (os.environ["HVDTEST_A"], os.environ["HVDTEST_B"]) == ("new", "b")
        raise KeyError
    assert os.environ["HVDTEST_A"] == "old"
    assert "HVDTEST_B" not in os.environ


def test_replace_keeps_the_rest():
    changed = from_environment({"HVDLITE_CYCLE_TIME": "9"}).replace(dynamic_process_sets=True)
    assert changed.dynamic_process_sets is True
    assert changed.cycle_time == 9.0
