"""The table of knobs: parsing, Horovod's spellings, what ranks must agree on, and the generated page."""

import re
from pathlib import Path

import pytest

from hvdlite import config
from hvdlite.config import KNOBS, from_environment, launcher_claim
from hvdlite.errors import InvalidArgumentError

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
    (line,) = from_environment({"HOROVOD_TIMELINE": "x", "HOROVOD_AUTOTUNE": "1", "HOROVOD_CYCLE_TIME": "1"}).notes
    assert "HOROVOD_AUTOTUNE (" in line
    assert "HOROVOD_TIMELINE (" in line
    assert "CYCLE_TIME" not in line


def test_a_misspelt_variable_of_ours_is_a_warning():
    (line,) = from_environment({"HVDLITE_FUSION_TRESHOLD": "1"}).warnings
    assert "HVDLITE_FUSION_TRESHOLD is no knob" in line
    assert "did you mean HVDLITE_FUSION_THRESHOLD?" in line


def test_the_table_is_well_formed():
    assert len(BY_NAME) == len(KNOBS)
    for knob in KNOBS:
        assert knob.doc.endswith(".")
        assert knob.horovod is None or knob.horovod not in config.MEANINGLESS
        assert knob.kind != "choice" or knob.default in knob.choices


def test_disagreements_name_knob_values_and_ranks():
    usual = from_environment({}).values
    other = from_environment({"HVDLITE_FUSION_THRESHOLD": "0", "HVDLITE_SPIN_US": "5"}).values
    (line,) = config.disagreements([usual, other, usual])
    assert line == "fusion_threshold (HVDLITE_FUSION_THRESHOLD) is 67108864 on ranks 0, 2, 0 on rank 1"
    assert config.disagreements([usual, usual]) == []


def test_native_values():
    native = config.to_native(from_environment({"HVDLITE_LOG_LEVEL": "error"}))
    assert native["log_level"] == 4
    assert native["cycle_time_ms"] == 0.2
    assert "bucket_bytes" not in native


def test_native_fields_and_defaults_are_those_of_the_engine():
    engine = pytest.importorskip("hvdlite._engine")
    assert config.to_native(from_environment({})) == engine.config_fields()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(0, "allreduce"), (1, "allgatherv"), (2, "broadcast"), (3, "alltoallv"), (4, "reducescatter"), (5, "barrier")],
)
def test_algorithm_choices_are_those_of_the_registry(kind, name):
    engine = pytest.importorskip("hvdlite._engine")
    assert BY_NAME[f"{name}_algorithm"].choices == ("auto", *engine.algorithms(kind))


def test_the_page_of_knobs_is_up_to_date():
    page = config.to_markdown()
    for knob in KNOBS:
        assert f"| `{knob.variable}` |" in page
    assert (ROOT / "docs" / "knobs.md").read_text() == page, "run: python -m hvdlite.config > docs/knobs.md"


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


def test_replace_keeps_the_rest():
    changed = from_environment({"HVDLITE_CYCLE_TIME": "9"}).replace(dynamic_process_sets=True)
    assert changed.dynamic_process_sets is True
    assert changed.cycle_time == 9.0
