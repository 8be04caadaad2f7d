"""`hvdlite.stats` of a real job: differences, steps, other ranks' numbers, and the writers."""

import json
import os
import re

import numpy as np
import pytest
from support.limits import eventually, when_waiting
from support.world import WORLD

from hvdlite import config, metrics
from hvdlite.metrics import PrometheusWriter, TensorBoardWriter, to_prometheus
from hvdlite.usage import Stats

RANKS = (2, 3)
MORE_RANKS = (1,)
# A rank that waits long for a slow one would tell rank 0 so in a message, and tests here count messages.
ENVIRONMENT = {"HVDLITE_DEADLOCK_TIMEOUT": "0"}


def step(hvd, number, count=5000):
    """The last rank comes when all others wait for it."""
    last = WORLD.size - 1
    if WORLD.rank != last:
        when_waiting(lambda: WORLD.send(None, last))
    else:
        for _ in range(last):
            WORLD.recv()
    hvd.allreduce(np.full(count, WORLD.rank + number, np.float32), name="gradient")


def test_a_difference_is_what_the_time_between_cost(hvd):
    hvd.barrier()
    before = hvd.stats()
    for number in range(4):
        step(hvd, number)
        hvd.allreduce(np.full(2000, WORLD.rank, np.float64), name="other")
    spent = hvd.stats() - before
    assert spent.operations == 8
    assert spent.bytes == 4 * (5000 * 4 + 2000 * 8)
    assert spent.bus_bytes == 4 * sum(nbytes * 2 * (WORLD.size - 1) // WORLD.size for nbytes in (20_000, 16_000))
    assert spent.failed_operations == 0
    assert spent.last_step is None
    if WORLD.size == 1:
        assert (spent.slowest_rank, spent.waiting_seconds) == (None, 0)
    else:
        assert sum(spent.last_to_ask) == 8
        assert spent.last_to_ask[WORLD.size - 1] >= 4
        assert spent.last_to_ask[spent.slowest_rank] == max(spent.last_to_ask)
        assert spent.slowest_share == max(spent.last_to_ask) / 8
        assert spent.moving_seconds > 0
        assert spent.bus_bandwidth == pytest.approx(spent.bus_bytes / spent.moving_seconds)
        if WORLD.rank < WORLD.size - 1:
            assert spent.exposed_waiting_seconds > 0
            assert spent.waited_for_seconds[WORLD.size - 1] > 0


def test_stats_send_nothing(hvd):
    hvd.barrier()
    before = hvd.stats()
    for _ in range(100):
        after = hvd.stats()
    assert (after - before).operations == 0
    assert (after.control_messages, after.sent_bytes) == (before.control_messages, before.sent_bytes)


def test_what_cannot_be_subtracted(hvd):
    before = hvd.stats()
    step(hvd, 0)
    after = hvd.stats()
    with pytest.raises(ValueError, match="subtract the earlier snapshot from the later"):
        before - after
    other = Stats(**{**vars(before), "rank": before.rank + 1})
    with pytest.raises(ValueError, match="same rank"):
        after - other
    later = Stats(**{**vars(after), "job": after.job + 1})
    with pytest.raises(ValueError, match=rf"in job {after.job + 1} of the process minus .* in job {after.job} of"):
        later - before
    with pytest.raises(TypeError):
        after - 3


@pytest.mark.parametrize("steps", [-1, 0.5, "1", None])
def test_steps_that_cannot_be_marked(hvd, steps):
    before = hvd.stats().steps
    with pytest.raises(ValueError, match="a whole number of at least 0"):
        hvd.mark_step(steps)
    assert hvd.stats().steps == before


def test_the_program_marks_steps(ended):
    with pytest.raises(ValueError, match="has not been initialized"):
        ended.stats()
    with pytest.raises(ValueError, match="has not been initialized"):
        ended.mark_step()
    ended.init()
    assert (ended.stats().steps, ended.stats().last_step) == (0, None)
    for number in range(3):
        for _ in range(number + 1):
            step(ended, number)
        ended.mark_step()
    found = ended.stats()
    assert found.steps == 3
    assert found.last_step.steps == 1
    assert found.last_step.operations == 3
    assert found.last_step.bytes == 3 * 20_000
    assert "3 steps in" in str(found)
    assert "in each" in str(found)
    assert json.loads(json.dumps(found.as_dict()))["last_step"]["operations"] == 3


def test_numbers_of_all_ranks(hvd):
    hvd.barrier()
    before = hvd.gather_stats()
    for number in range(4):
        step(hvd, number)
    after = hvd.gather_stats()
    assert [each.rank for each in after] == list(range(WORLD.size))
    spent = [late - early for late, early in zip(after, before, strict=True)]
    assert [json.dumps(each.as_dict()) for each in after] == WORLD.bcast([json.dumps(each.as_dict()) for each in after])
    if WORLD.size > 1:
        assert len({each.slowest_rank for each in spent}) == 1
        assert min(each.exposed_waiting_seconds for each in spent[:-1]) > 0
        assert min(each.waited_for_seconds[-1] for each in spent[:-1]) > 0


# --- Prometheus ---------------------------------------------------------------------------------------------------------

SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)+)\} (\S+)')


def parsed(text):
    """{name: (labels, value)} of the text exposition format; anything else in it is an error."""
    assert text.endswith("\n")
    found, kinds, helps = {}, {}, {}
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, helps_text = line[7:].split(" ", 1)
            assert name not in helps
            assert helps_text
            helps[name] = helps_text
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name not in kinds
            assert name not in found, "the type comes first"
            assert kind in ("counter", "gauge")
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            assert name not in found
            assert name in kinds
            assert name in helps
            assert name.endswith("_total") == (kinds[name] == "counter")
            found[name] = (dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)), float(value))
    return found


def test_the_text_for_prometheus(hvd):
    step(hvd, 0)
    now = hvd.stats()
    found = parsed(to_prometheus(now, 'a"b\\c\nd'))
    assert found["hvdlite_operations_total"] == ({"rank": str(WORLD.rank), "host": r"a\"b\\c\nd"}, now.operations)
    assert found["hvdlite_exposed_seconds_total"][1] == pytest.approx(now.exposed_seconds)
    assert found["hvdlite_last_to_ask_total"][1] == now.last_to_ask[WORLD.rank]


def test_the_knob_makes_a_file_for_each_rank(ended, tmp_path):
    target = tmp_path / "rank{rank}.prom"
    with config.environment(HVDLITE_METRICS_FILE=str(target), HVDLITE_METRICS_INTERVAL="0.1"):
        ended.init()
    mine = tmp_path / f"rank{WORLD.rank}.prom"
    assert eventually(mine.exists)
    step(ended, 0)
    assert eventually(lambda: parsed(mine.read_text())["hvdlite_data_bytes_total"][1] >= 20_000)
    for number in range(3):
        step(ended, number)
    ended.mark_step()
    ended.shutdown()
    assert parsed(mine.read_text())["hvdlite_data_bytes_total"][1] == 80_000, "the last writing is at the end"
    assert parsed(mine.read_text())["hvdlite_steps_total"][1] == 1
    assert os.listdir(tmp_path) == [mine.name], "nothing else is left"


def test_names_of_files_without_the_rank(hvd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = PrometheusWriter("job.prom", interval=60)
    monkeypatch.chdir("/")  # where nothing is written
    writer.close()
    writer.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"job.rank{WORLD.rank}.prom" if WORLD.rank else "job.prom"]


def test_a_disk_that_fails_is_reported_once_and_tried_again(hvd, tmp_path, caplog, monkeypatch):
    tried = []
    monkeypatch.setattr(metrics, "to_prometheus", lambda *what: tried.append(what) or to_prometheus(*what))
    folder = tmp_path / "later"
    writer = PrometheusWriter(folder / "{rank}.prom", interval=0.01)
    assert eventually(lambda: len(tried) > 3)
    assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1
    folder.mkdir()
    assert eventually(lambda: list(folder.glob("*.prom")))
    writer.close()


@pytest.mark.parametrize(("path", "interval"), [("x", 0), ("x", float("nan")), ("", 1), (".", 1), ("/", 1)])
def test_bad_arguments_of_the_file(hvd, path, interval):
    with pytest.raises(ValueError, match="PrometheusWriter"):
        PrometheusWriter(path, interval)


# --- TensorBoard --------------------------------------------------------------------------------------------------------


def test_scalars_every_few_steps(hvd):
    written = []
    writer = TensorBoardWriter(lambda *scalar: written.append(scalar), every=2)
    before = hvd.stats()
    first = before.steps
    for number in range(5):
        step(hvd, number)
        hvd.mark_step()
    assert [at - first for tag, _, at in written if tag == "hvdlite/step_ms"] == [2, 4]
    writer.close()
    writer.close()
    hvd.mark_step()
    assert [at - first for tag, _, at in written if tag == "hvdlite/operations"] == [2, 4, 5]
    assert {value for tag, value, _ in written if tag == "hvdlite/bytes"} == {20_000.0}
    waits = [value for tag, value, _ in written if tag == "hvdlite/exposed_waiting_ms"]
    if WORLD.rank < WORLD.size - 1:
        assert min(waits) > 0
    waited = (hvd.stats() - before).exposed_waiting_seconds
    assert sum(np.multiply(waits, [2, 2, 1])) == pytest.approx(1e3 * waited)


def test_scalars_go_on_after_another_init(ended):
    written = []
    for number in range(2):
        ended.init()
        if not number:
            writer = TensorBoardWriter(lambda *scalar: written.append(scalar), every=1)
        for _ in range(3):
            ended.allreduce(np.ones(4), name="x")
            ended.mark_step()
        if not number:
            ended.shutdown()
    writer.close()
    ended.mark_step()
    steps = [(value, at) for tag, value, at in written if tag == "hvdlite/operations"]
    assert steps == [(1.0, at) for at in (1, 2, 3, 5, 6)]


class Board:
    """What torch's and tensorboardX's SummaryWriter have."""

    def __init__(self):
        self.scalars = {}

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, new_style=False):
        self.scalars.setdefault(tag, []).append((scalar_value, global_step))


def test_with_a_summary_writer(hvd):
    board = Board()
    writer = TensorBoardWriter(board, every=1)
    first = hvd.stats().steps
    for number in range(2):
        step(hvd, number)
        hvd.mark_step()
    writer.close()
    assert board.scalars["hvdlite/operations"] == [(1.0, first + 1), (1.0, first + 2)]


@pytest.mark.parametrize(("writer", "every"), [(3, 1), (print, 0), (print, True), (print, 2.0)])
def test_bad_arguments_of_the_board(hvd, writer, every):
    with pytest.raises(ValueError, match="TensorBoardWriter"):
        TensorBoardWriter(writer, every)
