"""What hvdlite doctor --hosts says about hosts, from what their programs have printed. That is made up here."""

import json
import subprocess
import sys

import pytest
from support.job import job_environment

from hvdlite.errors import SystemFailure
from hvdlite.launcher import cli, host_checks, host_probes, on_hosts
from hvdlite.launcher.command import LauncherCommand
from hvdlite.launcher.job import JobOutcome
from hvdlite.launcher.plan import LaunchPlan

HOST = {
    **{"boot_id": "1", "python": "3.11.2", "cores": 8, "processor": "P", "mpi4py": "4.1", "numpy": "2.1", "torch": "2.5"},
    **{"tensorflow": "", "keras": "", "jax": "", "hvdlite": "0.2.0", "place": "/x/hvdlite", "mpi": "Open MPI 5", "problem": ""},
}


def host(name, address, **changes):
    interfaces = [["lo", "127.0.0.1", "255.0.0.0", ""], ["eth0", address, "255.255.255.0", "10000"]]
    return {**HOST, "host": name, "interfaces": interfaces, **changes}


def compared(*facts):
    findings = list(host_checks.compare([f"h{place}" for place in range(len(facts))], facts))
    return {finding.check: finding for finding in findings}


def test_hosts_that_are_alike():
    found = compared(host("a", "10.0.0.1"), host("b", "10.0.0.2"))
    assert {finding.status for finding in found.values()} == {"ok"}
    assert found["hvdlite"].found == "0.2.0 on all hosts"
    assert "tensorflow" not in found
    assert found["network"].found == (
        "all hosts are in 10.0.0.0/24: eth0 of h0 (10.0.0.1, 10000 Mbit/s), eth0 of h1 (10.0.0.2, 10000 Mbit/s)"
    )


@pytest.mark.parametrize(
    ("fact", "other", "subject", "status", "said"),
    [
        ("hvdlite", "0.1.0", "hvdlite", "fail", "the hosts differ: 0.2.0 on h0; 0.1.0 on h1"),
        ("mpi", "MPICH 4", "MPI", "fail", "the hosts differ: Open MPI 5 on h0; MPICH 4 on h1"),
        ("torch", "", "torch", "warn", "the hosts differ: 2.5 on h0; none on h1"),
        ("problem", "ImportError: no mpi4py", "MPI", "ok", "Open MPI 5 on all hosts"),
        ("cores", 4, "cores", "warn", "the hosts differ: 8 on h0; 4 on h1"),
    ],
)
def test_hosts_that_differ(fact, other, subject, status, said):
    found = compared(host("a", "10.0.0.1"), host("b", "10.0.0.2", **{fact: other}))[subject]
    assert (found.status, found.found, bool(found.remedy)) == (status, said, status != "ok")


def test_a_host_where_mpi_cannot_be_loaded():
    facts = [host("a", "10.0.0.1"), host("b", "10.0.0.2", problem="ImportError: no mpi4py", mpi="")]
    first = next(iter(host_checks.compare(["h0", "h1"], facts)))
    assert (first.status, first.found) == ("fail", "it cannot be loaded on h1: ImportError: no mpi4py")
    assert "run `hvdlite doctor` on h1" in first.remedy


def test_one_host_under_two_names():
    found = compared(host("a", "10.0.0.1"), host("a", "10.0.0.1"))
    assert [(each.status, each.found) for each in found.values()] == [("fail", "h0 and h1 are one host, a")]


def test_networks():
    apart = compared(host("a", "10.0.0.1"), host("b", "10.0.1.2"))
    assert apart["network"].status == "warn"
    assert apart["network"].found.startswith("the hosts have no IPv4 network in common: eth0 of h0 (10.0.0.1")
    bridge = ["docker0", "172.17.0.1", "255.255.0.0", ""]
    facts = [host(name, f"10.0.0.{place}") for place, name in enumerate("ab", 1)]
    for each in facts:
        each["interfaces"].append(bridge)
    found = compared(*facts)
    assert found["addresses"].found.startswith("docker0 of h0 and docker0 of h1 have the same address 172.17.0.1")
    assert found["network"].status == "ok"
    assert "172" not in found["network"].found


def measured(**changes):
    pair = {"host": 1, "latency": 2.5e-5, "offset": -0.002, "error": 2e-5, "to": 1.1e9, "from": 1.2e9, **changes}
    return {"pairs": [pair], "right": changes.get("right", True), "bytes": 1 << 24, "bus": 1.5e9}


def judged(**changes):
    facts = [host("a", "10.0.0.1"), host("b", "10.0.0.2")]
    return {finding.check: finding for finding in host_checks.judge(["h0", "h1"], facts, measured(**changes))}


def test_messages_between_hosts():
    found = judged()
    assert {finding.status for finding in found.values()} == {"ok"}
    assert found["clocks"].found == "the clock of h1 is 2 ms behind that of h0 (± 20 µs)"
    assert found["latency"].found == "8 bytes from h0 to h1 take 25 µs one way, by MPI"
    assert found["bandwidth"].found == "large messages: h0 to h1 1.1 GB/s, back 1.2 GB/s, by MPI"
    assert found["allreduce"].found == "hvdlite got the right sum of 16 MiB over 2 hosts, at 1.5 GB/s (bus bandwidth)"


@pytest.mark.parametrize(
    ("changes", "subject", "status", "said"),
    [
        ({"offset": 3.0}, "clocks", "warn", "the clock of h1 is 3 s ahead of that of h0"),
        ({"from": 0.2e9}, "bandwidth", "warn", "back 0.2 GB/s, by MPI; the interfaces' speed is 1.25 GB/s"),
        ({"right": False}, "allreduce", "fail", "was wrong"),
    ],
)
def test_messages_that_are_not_as_they_should_be(changes, subject, status, said):
    found = judged(**changes)[subject]
    assert found.status == status
    assert said in found.found
    assert found.remedy


def test_the_program_that_says_what_a_host_has():
    done = subprocess.run(
        [sys.executable, "-c", host_probes.FACTS], env=job_environment(), capture_output=True, text=True, timeout=90, check=True
    )
    found = json.loads(done.stdout)
    assert HOST.keys() <= found.keys()
    assert found["problem"] == ""
    assert "lo" in {name for name, *_ in found["interfaces"]}
    assert {check: finding.status for check, finding in compared(found, {**found, "host": "other"}).items()}["MPI"] == "ok"


def test_hosts_that_cannot_start_a_job_are_not_measured(monkeypatch, capsys):
    facts = [host("a", "10.0.0.1"), host("b", "10.0.0.2", mpi="MPICH 4")]
    programs = []

    def run(arguments, command, take, seconds):
        programs.append(command[2])
        for place, each in enumerate(facts):
            take(place, each)

    monkeypatch.setattr(on_hosts, "run_on_hosts", run)
    assert cli.main(["doctor", "--hosts", "h0,h1"]) == 1
    assert programs == [host_probes.FACTS]
    assert "not measured, because a job could not run on these hosts" in capsys.readouterr().out


def test_a_job_that_fails_between_hosts(monkeypatch, capsys):
    def run(arguments, command, take, seconds):
        if command[2] == host_probes.MEASURE:
            raise SystemFailure("a program on the hosts h0,h1 did not end within 180 seconds")
        for place, name in enumerate("ab"):
            take(place, host(name, f"10.0.0.{place}"))

    monkeypatch.setattr(on_hosts, "run_on_hosts", run)
    assert cli.main(["doctor", "--hosts", "h0,h1", "--json"]) == 1
    (found,) = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["status"] == "fail"]
    assert "did not end within 180 seconds" in found["found"]
    assert "look for a firewall" in found["remedy"]


@pytest.mark.parametrize(("launcher", "added"), [("/x/srun", ["--overlap"]), ("/x/mpirun", [])])
def test_programs_run_beside_a_job_of_slurm(monkeypatch, launcher, added):
    words = []

    class Job:
        def __init__(self, chosen, *arguments, **options):
            words.extend(chosen.line.words)

        def run(self):
            return JobOutcome(0)

    chosen = LaunchPlan(LauncherCommand((launcher, "--ntasks=2"), {}), {}, 2, False, True, ())
    monkeypatch.setattr(on_hosts.plan, "make", lambda *arguments, **options: chosen)
    monkeypatch.setattr(on_hosts, "LaunchedJob", Job)
    on_hosts.run_on_hosts(cli.make_parser().parse_args(["doctor", "--hosts", "a,b"]), ["true"], lambda *_: True)
    assert words == [launcher, "--ntasks=2", *added]


def test_one_host_cannot_be_compared(capsys):
    assert cli.main(["doctor", "--hosts", "alone"]) == 2
    assert "doctor --hosts alone: name two hosts or more, in the form a,b" in capsys.readouterr().err
