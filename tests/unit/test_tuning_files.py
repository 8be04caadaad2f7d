"""What may be tuned in which job, and the file in which a tuning is kept."""

import json
from dataclasses import replace

import pytest

from hvdlite.config import from_environment
from hvdlite.errors import InvalidArgumentError
from hvdlite.knobs import KNOBS
from hvdlite.tuning import files
from hvdlite.tuning.parameters import TUNABLE, JobShape, keeps_bits, parameters
from hvdlite.tuning.place import JobPlace

PLACE = JobPlace(("a CPU",), (8,), (4,), False, "openmpi", "auto", False)
DEFAULTS = from_environment({})
ONE_HOST = JobShape((4,))


def names(shape, config=DEFAULTS, any_bits=False):
    found, left_out = parameters(shape, config, any_bits)
    return [parameter.name for parameter in found], left_out


# --- what is searched ---------------------------------------------------------------------------------------------------


def test_every_ladder_has_its_default_and_values_on_both_sides_of_it():
    found, _ = parameters(JobShape((1, 1)), DEFAULTS)
    found += parameters(ONE_HOST, DEFAULTS)[0]
    assert {parameter.name for parameter in found} == set(TUNABLE)
    for parameter in found:
        default = DEFAULTS.values[parameter.name]
        assert default in parameter.values
        if parameter.ordered:
            assert list(parameter.values) == sorted(parameter.values)
            assert parameter.values[0] < default < parameter.values[-1]
        knob = next(knob for knob in KNOBS if knob.name == parameter.name)
        assert [knob.parse(str(value)) for value in parameter.values] == list(parameter.values)


@pytest.mark.parametrize(
    ("shape", "expected", "left_out"),
    [
        (JobShape((1,)), [], []),
        (JobShape((4,)), ["tile_bytes", "fusion_threshold", "spin_us"], []),
        (
            JobShape((4,), shared_memory=False),
            ["spin_us"],
            ["fusion_threshold", "segment_bytes", "recursive_doubling_max_bytes", "allreduce_algorithm"],
        ),
        (
            JobShape((2, 2)),
            [
                *("tile_bytes", "fusion_threshold", "spin_us", "segment_bytes", "remote_message_bytes"),
                "recursive_doubling_max_bytes",
            ],
            ["allreduce_algorithm"],
        ),
        (
            JobShape((2, 2, 2)),
            ["tile_bytes", "spin_us", "remote_message_bytes"],
            ["fusion_threshold", "segment_bytes", "recursive_doubling_max_bytes", "allreduce_algorithm"],
        ),
        (
            JobShape((2, 2, 2), deterministic=True),
            ["tile_bytes", "fusion_threshold", "spin_us", "segment_bytes", "remote_message_bytes"],
            ["allreduce_algorithm"],
        ),
        (
            JobShape((1, 1)),
            [
                *("fusion_threshold", "spin_us", "segment_bytes", "remote_message_bytes", "recursive_doubling_max_bytes"),
                "allreduce_algorithm",
            ],
            [],
        ),
    ],
)
def test_what_is_searched_follows_from_the_shape(shape, expected, left_out):
    found, without = names(shape)
    assert sorted(found) == sorted(expected)
    assert sorted(without) == sorted(left_out)
    found, without = names(shape, any_bits=True)
    assert sorted(found) == sorted([*expected, *left_out])
    assert not without


def test_what_a_variable_sets_is_not_searched():
    config = from_environment({"HVDLITE_TILE_BYTES": "64KiB", "HOROVOD_FUSION_THRESHOLD": "0"})
    assert names(ONE_HOST, config) == (["spin_us"], [])


def test_a_ring_is_not_tried_where_init_would_refuse_it():
    found, _ = parameters(JobShape((1, 1), deterministic=True), DEFAULTS)
    assert next(one for one in found if one.name == "allreduce_algorithm").values == ("auto", "direct", "recursive_doubling")


def test_no_choice_of_algorithm_keeps_the_bits_of_three_ranks():
    assert not keeps_bits("allreduce_algorithm", JobShape((2, 2), deterministic=True))
    assert keeps_bits("allreduce_algorithm", JobShape((1, 1)))


# --- the file -----------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "deep" / "tuning.json"
    settings = {"tile_bytes": 131072, "spin_us": 50.0, "allreduce_algorithm": "direct"}
    files.save(path, PLACE, settings, {"trials": []})
    key, found = files.load(path)
    assert found == settings
    assert not files.differences(key, PLACE)
    assert [file.name for file in path.parent.iterdir()] == ["tuning.json"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cpus": ("another CPU",)}, "cpus is another CPU here and a CPU there"),
        ({"cores": (2,)}, "cores is 2 here and 8 there"),
        ({"ranks_per_host": (4, 4)}, "ranks_per_host is 2 times 4 here and 4 there"),
        ({"bound": True}, "bound is True here and False there"),
        ({"mpi": "mpich"}, "mpi is mpich here and openmpi there"),
        ({"shared_memory": "off"}, "shared_memory is off here and auto there"),
        ({"deterministic": True}, "deterministic is True here and False there"),
    ],
)
def test_another_job_is_noticed(tmp_path, change, said):
    path = tmp_path / "tuning.json"
    files.save(path, PLACE, {}, {})
    here = replace(PLACE, **change)
    assert files.differences(files.load(path)[0], here) == [said]


def test_another_version_and_unknown_keys_are_noticed(tmp_path):
    path = tmp_path / "tuning.json"
    files.save(path, PLACE, {}, {})
    content = json.loads(path.read_text())
    content["key"] |= {"hvdlite": "9.9", "fabric": "light"}
    path.write_text(json.dumps(content))
    different = files.differences(files.load(path)[0], PLACE)
    assert len(different) == 2
    assert different[0].endswith("and 9.9 there")
    assert different[1] == "fabric is None here and light there"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it cannot be read"),
        ("{", "it cannot be read"),
        ("[]", "it is no tuning"),
        ('{"format": "1"}', "it is no tuning"),
        ('{"format": 99, "key": {}, "settings": {}}', "of format 99"),
        ('{"format": 1, "key": {}}', "no key or no settings"),
        ('{"format": 1, "key": {}, "settings": {"cycle_time": 1}}', "'cycle_time' is nothing that is tuned"),
        ('{"format": 1, "key": {}, "settings": {"tile_bytes": "64KiB"}}', "tile_bytes is a whole number.*, not '64KiB'"),
        ('{"format": 1, "key": {}, "settings": {"tile_bytes": 1}}', "tile_bytes is a whole number of bytes of at least"),
        ('{"format": 1, "key": {}, "settings": {"tile_bytes": true}}', "not True"),
        ('{"format": 1, "key": {}, "settings": {"allreduce_algorithm": "magic"}}', "allreduce_algorithm is one of .*'magic'"),
        ('{"format": 1, "key": {}, "settings": {"spin_us": null}}', "spin_us is a number.*not None"),
    ],
)
def test_a_malformed_file_is_a_clear_error(tmp_path, text, why):
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError, match=why) as caught:
        files.load(path)
    assert str(path) in str(caught.value)
    assert "hvdlite tune --output" in str(caught.value)


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(InvalidArgumentError, match="No such file"):
        files.load(tmp_path / "none.json")


def test_each_shape_of_job_has_a_file_of_its_own_in_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = files.default_path(PLACE), files.default_path(replace(PLACE, ranks_per_host=(8,)))
    assert one.parent == other.parent == tmp_path / "hvdlite"
    assert one != other
    assert one == files.default_path(replace(PLACE))


def test_without_a_cache_folder_auto_is_refused(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    with pytest.raises(InvalidArgumentError, match="no cache folder"):
        files.default_path(PLACE)
