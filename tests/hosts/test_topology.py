"""Ranks on several hosts: where they find themselves, and that what they reduce is right."""

import json
import textwrap

import pytest
from support.hosts import emulated_hosts
from support.shared_memory import SMALL_SHM, needs_mount

PROGRAM = """
    import json, os, socket
    import numpy as np
    import hvdlite as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    for step in range(3):
        for count in (1, 1000, 300_001):
            value = np.arange(count) % 101 + 7.0 * rank
            total = hvd.allreduce(value, name=f"a{count}", op=hvd.Sum)
            assert np.array_equal(total, size * (np.arange(count) % 101) + 7.0 * (size * (size - 1) // 2))
    place = {"host": socket.gethostname(), "homogeneous": hvd.is_homogeneous()}
    place["local"] = [hvd.local_rank(), hvd.local_size()]
    place["cross"] = [hvd.cross_rank(), hvd.cross_size()]
    print(json.dumps(place), flush=True)
"""


@pytest.fixture(scope="module")
def hosts():
    with emulated_hosts(2) as up:
        yield up


def places(job):
    assert job.returncode == 0, job.report()
    assert all(text == "" for text in job.stderr.values()), job.report()
    return [json.loads(job.stdout[rank]) for rank in sorted(job.stdout)]


def test_two_hosts_of_two_ranks(hosts):
    assert places(hosts.run(2, PROGRAM)) == [
        {"host": host, "homogeneous": True, "local": [local, 2], "cross": [cross, 2]}
        for cross, host in enumerate(("h0", "h1"))
        for local in range(2)
    ]


def test_hosts_of_different_sizes(hosts):
    assert places(hosts.run([2, 1], PROGRAM)) == [
        {"host": "h0", "homogeneous": False, "local": [0, 2], "cross": [0, 2]},
        {"host": "h0", "homogeneous": False, "local": [1, 2], "cross": [0, 1]},
        {"host": "h1", "homogeneous": False, "local": [0, 1], "cross": [1, 2]},
    ]


def test_ranks_dealt_to_the_hosts_in_turn(hosts):
    found = places(hosts.run(2, PROGRAM, interleaved=True))
    assert [place["host"] for place in found] == ["h0", "h1", "h0", "h1"]
    assert [place["local"] for place in found] == [[0, 2], [0, 2], [1, 2], [1, 2]]


@needs_mount
def test_a_host_of_one_rank_without_room_for_a_window_is_named(hosts):
    """Without its window, no collective of the job can be hierarchical."""
    job = hosts.run([2, 1], SMALL_SHM % 64 + textwrap.dedent(PROGRAM), env={"HVDLITE_SHARED_MEMORY": "shm"})
    assert job.returncode == 0, job.report()
    assert "the ranks of host h0 share no window (shm: " in job.stderr[0], job.report()
    for part in ("host h1 has no window (shm: ", "No space left on device", "cannot be hierarchical", "--shm-size"):
        assert part in job.stderr[2], job.report()
