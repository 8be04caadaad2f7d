"""`hvdlite tune --link`: what its program measures and prints, without a link (that is injected) and without sleeping."""

import numpy as np
import pytest
from support.world import WORLD

import hvdlite as hvd
from hvdlite import link_measurement, link_tuning
from hvdlite.tuning.link_model import ALL_METHODS, Gradients, HostLink

RANKS = (2,)


@pytest.fixture(autouse=True)
def initialized():
    hvd.init()
    yield
    hvd.shutdown()


def test_each_method_sleeps_and_reduces_once():
    slept = []
    steps = link_tuning.SimulatedSteps(Gradients((1000, 3000, 2000)), 6.0, slept.append)
    for method in ALL_METHODS:
        slept.clear()
        steps.run(method)
        assert sum(slept) == pytest.approx(6.0 * method.passes)
        assert len(slept) == method.passes + 3  # the forward part and three buckets, after all passes but one
        for number, values in enumerate(steps._gradients):
            everyone = WORLD.allgather(values)
            if method.name == "none":
                assert all(np.array_equal(values, other) for other in everyone), f"bucket {number}"


def test_the_report_has_predicted_and_measured_times(monkeypatch, capsys):
    monkeypatch.setattr(link_tuning, "measure_link", lambda process_set: HostLink(2, 0.02, 12.5e6, 1e-9))
    assert link_tuning.main(["--parameters", "100000", "--step-time", "0.0005", "--seconds", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()
    if WORLD.rank:
        assert lines == []
        return
    assert lines[0] == f"{WORLD.size} ranks: 2 hosts, latency 20 ms, 12.5 MB/s from each host, 1 ns to code an element"
    assert lines[1] == "a step: 100,000 parameters (float32), 0.5 ms without communication"
    assert lines[4].startswith("none               52.5 ms")
    assert all(len(line.split(" ms")) == 3 for line in lines[4:10])
    assert lines[-1].startswith("Use ")


def test_gradients_larger_than_the_memory_are_refused_first(capsys, monkeypatch):
    monkeypatch.setattr(link_tuning, "measure_link", lambda process_set: pytest.fail("measured"))
    assert link_tuning.main(["--parameters", str(10**15), "--step-time", "0.001"]) == 1
    said = capsys.readouterr().err
    assert ("--parameters 1000000000000000: the gradients" in said and "give fewer parameters" in said) == (WORLD.rank == 0)


def test_one_host_has_no_link_to_measure(capsys, monkeypatch):
    monkeypatch.setattr(link_measurement, "own_seconds", lambda *_: pytest.fail("measured"))
    assert link_tuning.main(["--parameters", "10", "--step-time", "0.001"]) == 1
    assert ("all ranks are on one host" in capsys.readouterr().err) == (WORLD.rank == 0)
