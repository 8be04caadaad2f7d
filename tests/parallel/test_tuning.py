"""Tunings in a real job: made by ``hvdlite tune``'s program, taken at init, or refused, on all ranks alike."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.world import WORLD, on_all_ranks

from hvdlite import autotune, config, startup
from hvdlite.basics import RUNTIME
from hvdlite.errors import InternalError, InvalidArgumentError
from hvdlite.tuning import files

RANKS = (3,)  # on two ranks the tests do the same with fewer
MORE_RANKS = (2,)
KNOBS = config.from_environment({})
SETTINGS = {"tile_bytes": 32768, "fusion_threshold": 1 << 20, "spin_us": 25.0}


@pytest.fixture(autouse=True)
def no_knob_is_set(monkeypatch):
    """A knob of the environment goes before a tuning; support/parallel.py sets this one."""
    monkeypatch.delenv("HVDLITE_SPIN_US")


@pytest.fixture
def folder(ended, tmp_path):
    """The same on all ranks."""
    return Path(WORLD.bcast(str(tmp_path)))


@pytest.fixture
def place():
    return startup.place_of(WORLD, KNOBS)


@pytest.fixture
def lines(caplog):
    """What rank 0 has logged, on all ranks."""
    caplog.set_level(logging.INFO, logger="hvdlite")
    return lambda: WORLD.bcast([record.getMessage() for record in caplog.records])


def taken(hvd):
    """The knobs of a tuning in this job, which works."""
    count = 100_000
    total = hvd.allreduce(np.full(count, hvd.rank() + 1.0, np.float32), op=hvd.Sum)
    assert total.tolist() == [hvd.size() * (hvd.size() + 1) / 2] * count
    values = {name: RUNTIME.config.values[name] for name in SETTINGS}
    on_all_ranks(str(values))
    return values


def started(hvd, monkeypatch, name, **variables):
    monkeypatch.setenv("HVDLITE_TUNING_FILE", str(name))
    monkeypatch.setenv("HVDLITE_LOG_LEVEL", "info")
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    hvd.init()


def saved(folder, place, settings=None):
    path = folder / "tuning.json"
    if WORLD.rank == 0:
        files.save(path, place, SETTINGS if settings is None else settings, {})
    WORLD.Barrier()
    return path


def test_the_place_of_this_job(place):
    on_all_ranks(str(place))
    assert sum(place.ranks_per_host) == WORLD.size
    assert len(place.cpus) == len(place.cores) == len(place.ranks_per_host)


def test_a_tuning_is_taken_on_all_ranks(ended, folder, place, monkeypatch, lines):
    started(ended, monkeypatch, saved(folder, place))
    assert taken(ended) == SETTINGS
    assert any("tile_bytes=32KiB" in line for line in lines())


def window_bytes():
    """The memory that this rank shares with its neighbours for passing data."""
    ranges = [
        line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "hvdlite-window" in line
    ]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def test_tiles_have_the_size_that_the_knob_says(ended, monkeypatch):
    sizes = []
    for tile in (16 << 10, 256 << 10):
        monkeypatch.setenv("HVDLITE_TILE_BYTES", str(tile))
        ended.init()
        taken(ended)
        sizes.append(window_bytes())
        ended.shutdown()

    def bytes_of_a_rank(tile):
        regions, buffers, flags, page = 8, 2, 192, 4096
        riding = min((64 << 10) // WORLD.size, tile // 8) // 64 * 64  # payloads that ride with announcements
        pages = -(-regions * (flags + buffers * riding) // page)
        return pages * page + regions * buffers * tile

    assert sizes[1] - sizes[0] == WORLD.size * (bytes_of_a_rank(256 << 10) - bytes_of_a_rank(16 << 10))


def test_rank_0s_file_decides(ended, folder, place, monkeypatch):
    path = saved(folder, place)
    if WORLD.rank > 0:  # as on another host that lacks it
        real = autotune.files.load
        monkeypatch.setattr(autotune.files, "load", lambda path: real(folder / "nowhere"))
    started(ended, monkeypatch, path)
    assert taken(ended) == SETTINGS


def test_what_a_variable_sets_on_one_rank_stays_on_all(ended, folder, place, monkeypatch):
    path = saved(folder, place)
    default = {"HVDLITE_TILE_BYTES": "512KiB"} if WORLD.rank == WORLD.size - 1 else {}
    started(ended, monkeypatch, path, **default)
    assert taken(ended) == {**SETTINGS, "tile_bytes": 512 << 10}


def test_a_tuning_for_another_job_is_refused_with_one_line(ended, folder, place, monkeypatch, lines):
    other = replace(place, cpus=("another CPU",), cores=(77,))
    started(ended, monkeypatch, saved(folder, other))
    assert taken(ended) == {name: KNOBS.values[name] for name in SETTINGS}
    refused = [line for line in lines() if "for another job and is not taken" in line]
    assert len(refused) == 1
    assert "another CPU there" in refused[0]
    assert "and 77 there" in refused[0]


@pytest.mark.parametrize("content", [None, "{", '{"format": 1, "key": {}, "settings": {"tile_bytes": -3}}'])
def test_a_file_that_cannot_be_used_fails_everywhere(ended, folder, monkeypatch, content):
    fails_with(ended, folder / "broken.json", monkeypatch, content)


def test_a_path_that_no_file_can_have_fails_everywhere(ended, folder, monkeypatch):
    fails_with(ended, folder / f"{'long' * 100}broken.json", monkeypatch, None)


def fails_with(ended, path, monkeypatch, content):
    if WORLD.rank == 0 and content is not None:
        path.write_text(content)
    with pytest.raises(InvalidArgumentError, match=r"the tuning in .*broken\.json cannot be used") as caught:
        started(ended, monkeypatch, path)
    on_all_ranks(str(caught.value))
    assert not ended.is_initialized()
    monkeypatch.delenv("HVDLITE_TUNING_FILE")
    ended.init()
    taken(ended)


def test_auto_is_the_users_file_for_this_job(ended, folder, place, monkeypatch, lines):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    started(ended, monkeypatch, "auto")
    assert taken(ended)["tile_bytes"] == KNOBS.tile_bytes
    assert sum("there is no tuning for this machine" in line for line in lines()) == 1
    ended.shutdown()
    if WORLD.rank == 0:
        files.save(files.default_path(place), place, SETTINGS, {})
    WORLD.Barrier()
    ended.init()
    assert taken(ended) == SETTINGS


@pytest.fixture
def few(monkeypatch):
    """Samples that take no time."""
    monkeypatch.setattr(autotune, "_GRADIENTS", (1 << 10, 64 << 10))
    monkeypatch.setattr(autotune, "_SINGLE", ((1 << 10, 2), (256 << 10, 1)))


def test_a_file_that_cannot_be_written_is_an_error_before_the_program_measures(ended, folder, monkeypatch, capsys):
    monkeypatch.setattr(autotune, "tune", lambda *_: pytest.fail("measured"))
    assert autotune.main(["--output", str(folder)]) == 1
    said = f"hvdlite tune: the tuning cannot be written: [Errno 21] Is a directory: '{folder}'\n"
    assert capsys.readouterr().err == (said if WORLD.rank == 0 else "")


def test_the_program_measures_writes_and_says_so(ended, folder, few, place, monkeypatch, capsys):
    path = folder / "made.json"
    log = folder / "log.csv"
    monkeypatch.setenv("HVDLITE_AUTOTUNE_LOG", str(log))
    monkeypatch.setenv("HVDLITE_FUSION_THRESHOLD", "1MiB")  # so only tile_bytes is searched, and the search ends by itself
    monkeypatch.setenv("HVDLITE_SPIN_US", "0")
    assert autotune.main(["--seconds", "100", "--output", str(path)]) == 0
    WORLD.Barrier()
    content = json.loads(path.read_text())
    assert content["key"] == place.key()
    evidence = content["evidence"]
    first = evidence["trials"][0]
    assert first["settings"] == {"tile_bytes": 1 << 20}
    assert first["rounds"] >= 1
    assert evidence["same_bits"] is True
    assert evidence["cases"] == list(autotune.CASES)
    header, line = log.read_text().splitlines()[:2]
    assert header == "parameter,from,to,gain,noise,rounds,taken"
    assert line.startswith(f"tile_bytes,524288,1048576,{first['gain']},")
    out = capsys.readouterr().out
    if WORLD.rank == 0:
        assert "tile_bytes                        512KiB                1MiB" in out
        assert f"HVDLITE_TUNING_FILE={path}" in out
    else:
        assert not out
    monkeypatch.setenv("HVDLITE_TUNING_FILE", str(path))
    ended.init()
    taken(ended)
    assert {name: RUNTIME.config.values[name] for name in content["settings"]} == content["settings"]


def test_nothing_to_tune_is_said(ended, folder, monkeypatch, capsys):
    for name in ("TILE_BYTES", "FUSION_THRESHOLD"):
        monkeypatch.setenv(f"HVDLITE_{name}", "1MiB")
    monkeypatch.setenv("HVDLITE_SPIN_US", "0")
    assert autotune.main(["--seconds", "1", "--output", str(folder / "none.json")]) == 1
    if WORLD.rank == 0:
        assert "variables set all that may be tuned (HVDLITE_FUSION_THRESHOLD" in capsys.readouterr().err
    assert not (folder / "none.json").exists()


# --- at init ------------------------------------------------------------------------------------------------------------


def plant(monkeypatch):
    """Real engines, but as if tiles of 128 KiB were twice as fast as any others."""

    def sample(engines, settings):
        engines.get(settings)
        return [0.5 if settings["tile_bytes"] == 128 << 10 else 1.0 + 0.001 * (settings.get("spin_us", -1) > 0)] * 2

    monkeypatch.setattr(autotune.Engines, "sample", sample)
    monkeypatch.setenv("HVDLITE_AUTOTUNE_SECONDS", "120")  # it ends by itself long before


def test_init_measures_once_and_keeps_it(ended, folder, few, place, monkeypatch, lines):
    plant(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    monkeypatch.setenv("HVDLITE_LOG_LEVEL", "info")
    ended.init()
    assert taken(ended)["tile_bytes"] == 128 << 10
    assert sum("measuring which knobs suit this machine" in line for line in lines()) == 1
    assert any(line.startswith("HVDLITE_AUTOTUNE: tile_bytes=128KiB") for line in lines())
    ended.shutdown()
    assert files.load(WORLD.bcast(files.default_path(place)))[1] == {"tile_bytes": 128 << 10}
    monkeypatch.setattr(autotune, "tune", None)  # not again
    ended.init()
    assert taken(ended)["tile_bytes"] == 128 << 10
    assert any("says: tile_bytes=128KiB" in line for line in lines())


def test_what_a_variable_sets_on_one_rank_is_not_measured(ended, folder, few, monkeypatch):
    plant(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("HVDLITE_AUTOTUNE", "1")
    if WORLD.rank == WORLD.size - 1:
        monkeypatch.setenv("HVDLITE_SPIN_US", "-1")
    ended.init()
    assert taken(ended)["tile_bytes"] == 128 << 10
    trials = json.loads(next((folder / "hvdlite").iterdir()).read_text())["evidence"]["trials"]
    assert not [trial for trial in trials if "spin_us" in trial["settings"]]


def test_a_file_for_another_job_is_not_written_over(ended, folder, few, place, monkeypatch, lines):
    plant(monkeypatch)
    other = replace(place, cores=(77,))
    path = saved(folder, other)
    before = path.read_text()
    monkeypatch.setenv("HVDLITE_AUTOTUNE", "1")
    started(ended, monkeypatch, path)
    assert taken(ended)["tile_bytes"] == 128 << 10
    assert any("the measured values are not written" in line and "is a file for another job" in line for line in lines())
    assert path.read_text() == before


def test_bits_that_change_are_an_error(ended, folder, few, monkeypatch):
    plant(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("HVDLITE_AUTOTUNE", "1")
    real = autotune.Engines.fingerprint
    monkeypatch.setattr(
        autotune.Engines, "fingerprint", lambda engines, settings: f"{real(engines, settings)}{settings['tile_bytes']}"
    )
    with pytest.raises(InternalError, match="with tile_bytes=1MiB sums have other bits than with the defaults"):
        ended.init()
    monkeypatch.delenv("HVDLITE_AUTOTUNE")
    ended.init()
    taken(ended)
