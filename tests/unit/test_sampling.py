"""Samples of the main thread's Python stack: where they say it was, their file, which is bounded, and a disk that fails."""

import functools
import itertools
import json
import logging
import queue
import resource
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.limits import eventually

from hvdlite import sampling
from hvdlite.sampling import StackSampler
from hvdlite.timeline import files
from hvdlite.watchdog import own_calls_of


@pytest.fixture
def started(monkeypatch):
    """Starts samplers, with a pause that keeps the test short, and ends them."""
    monkeypatch.setattr(sampling, "_INTERVAL", 0.0005)
    made = []

    def start(path, room=1 << 20):
        made.append(StackSampler(path, room, rank=3))
        return made[-1]

    yield start
    for sampler in made:
        sampler.close()


def read_batch(sampler):
    before = sampler.samples
    assert eventually(lambda: sampler.samples > before + 2)


def spans(path):
    return [event for event in json.loads(path.read_text()) if event["name"] == files.STACK]


def test_samples_say_where_the_program_was(started, tmp_path):
    sampler = started(tmp_path / "t.json")
    read_batch(sampler)
    sampler.close()
    assert sampler.path == tmp_path / "t.stacks.json"
    found = spans(sampler.path)
    here = [event["args"]["calls"] for event in found if "test_samples_say_where" in event["args"]["calls"]]
    assert any("unit/test_sampling.py:" in calls and " read_batch > " in calls for calls in here)
    assert not any("_pytest/" in calls for calls in here)  # a library
    assert {event["pid"] for event in found} == {3}
    ends = [(event["ts"], event["ts"] + event["dur"]) for event in found]
    assert all(begin < end for begin, end in ends)
    assert all(end <= begin + 0.01 for (_, end), (begin, _) in itertools.pairwise(ends))
    count = sampler.samples
    sampler.close()  # harmless
    assert sampler.samples == count


def test_the_file_is_bounded(started, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "_MANY", 3)
    room = 8 * 2000
    sampler = started(tmp_path / "t.json", room)
    older = tmp_path / "t.stacks.json.old"
    while not older.exists():
        read_batch(sampler)
        read_batch(sampler)  # another line
    sampler.close()
    assert spans(older)
    json.loads(sampler.path.read_text())
    assert older.stat().st_size + sampler.path.stat().st_size < room / 8 + 2000
    sampler = started(tmp_path / "t.json", room)  # another timeline of this name
    assert eventually(lambda: not older.exists())


def test_calls_of_libraries_are_left_out_but_for_the_innermost():
    seen = []
    json.loads("[1.5]", parse_float=lambda text: seen.append(own_calls_of(sys._getframe(1))))
    (calls,) = seen
    assert calls[-1].startswith("json/")
    assert calls[-2].startswith("unit/test_sampling.py:")
    assert not any("_pytest/" in call for call in calls[:-1])
    assert own_calls_of(None) == []


def test_a_stack_of_libraries_alone_is_whole():
    frames = queue.SimpleQueue()
    with ThreadPoolExecutor(1) as pool:  # whose threads run nothing of this file
        pool.submit(functools.partial(json.loads, "[1.5]", parse_float=lambda text: frames.put(own_calls_of(sys._getframe(1)))))
    calls = frames.get()
    assert [call.rpartition(" ")[2] for call in calls[:3]] == ["_bootstrap", "_bootstrap_inner", "run"]
    assert calls[-1].startswith("json/")


def test_a_disk_that_fails_ends_the_samples_with_one_line(started, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "hvdlite"):
        sampler = started(tmp_path / "nowhere" / "t.json")
        sampler.close()
    (line,) = caplog.messages
    assert "the stacks cannot be written to" in line
    assert "No such file or directory; the sampling ends" in line


def test_a_disk_without_room_for_a_whole_write_is_an_error(started, tmp_path):
    """Otherwise a later write, when there is room again, would begin behind a gap."""
    sampler = started(tmp_path / "t.json")
    sampler.close()
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (sampler.path.stat().st_size + 10, most))
    try:
        with pytest.raises(OSError, match="File too large"):
            sampler._append("a" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
