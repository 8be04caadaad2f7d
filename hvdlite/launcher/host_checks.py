"""``hvdlite doctor --hosts a,b``: compares the hosts' software and hardware, and measures messages between them."""

import argparse
import ipaddress
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hvdlite.errors import HvdliteError, InvalidArgumentError
from hvdlite.launcher import host_probes, on_hosts
from hvdlite.launcher.checks import Finding

__all__ = ["compare", "examine_hosts", "judge"]

_FACTS_SECONDS, _MEASURE_SECONDS = 60.0, 180.0
# If two clocks differ by more seconds than this, log lines of the hosts are hard to compare.
_CLOCK = 0.1
# The part of an interface's speed that a message should reach.
_PART_OF_SPEED = 0.5
_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")

# What should be equal on all hosts: the subject, the fact, the status if it differs, and the remedy.
_EQUAL = (
    ("hvdlite", "hvdlite", "fail", "install one version on all hosts: init() refuses others"),
    ("MPI", "mpi", "fail", "install one MPI of one version on all hosts, and let mpi4py load it there"),
    ("Python", "python", "warn", "take one version: ranks send each other pickled objects"),
    ("mpi4py", "mpi4py", "warn", "install one version on all hosts"),
    ("numpy", "numpy", "warn", "install one version on all hosts"),
    *((name, name, "warn", "install one version on all hosts") for name in _FRAMEWORKS),
    ("place", "place", "warn", "install hvdlite and the program at one path on all hosts, as mpirun starts them by one path"),
    ("processor", "processor", "warn", "the slowest host sets the pace, and frameworks may compute other last bits there"),
    ("cores", "cores", "warn", "the slowest host sets the pace: give it fewer ranks, or all hosts equal ones"),
)


def examine_hosts(arguments: argparse.Namespace) -> Iterator[Finding]:
    """The findings about ``arguments.hosts``, one after the other.

    Raises:
        InvalidArgumentError: fewer than two hosts are given.
    """
    names = on_hosts.names_of(arguments.hosts)
    if len(names) < 2:
        raise InvalidArgumentError(f"doctor --hosts {arguments.hosts}: name two hosts or more, as a,b")
    facts: dict[int, dict[str, Any]] = {}
    try:
        facts = _run(arguments, host_probes.FACTS, _FACTS_SECONDS)
        missing = [name for place, name in enumerate(names) if place not in facts]
        problem = f"nothing came from {', '.join(missing)}" if missing else ""
    except HvdliteError as error:
        problem = str(error)
    if problem:
        yield Finding(
            "reach the hosts",
            "fail",
            f"a program could not be run on each of them: {problem}",
            "`ssh HOST true` has to work from here without a password, with Python and hvdlite at the same paths on each HOST",
        )
        return
    yield Finding("reach the hosts", "ok", f"a program has run on each of {', '.join(names)}")
    failed = False
    for finding in compare(names, [facts[place] for place in range(len(names))]):
        failed = failed or finding.status == "fail"
        yield finding
    if failed:
        yield Finding("messages", "none", "not measured, as a job could not run on these hosts")
        return
    try:
        measured = _run(arguments, host_probes.MEASURE, _MEASURE_SECONDS)
    except HvdliteError as error:
        remedy = (
            "look for a firewall between the hosts (MPI takes any port), and name the network: --network-interfaces eth0 of "
            "`hvdlite run`, here --mpi-args '--mca btl_tcp_if_include eth0'"
        )
        yield Finding("messages", "fail", f"a job of one rank on each host failed: {error}", remedy)
        return
    yield from judge(names, [facts[place] for place in range(len(names))], measured[0])


def _run(arguments: argparse.Namespace, program: str, seconds: float) -> dict[int, dict[str, Any]]:
    """What a program has printed on each host, by the host's place in the list."""
    found: dict[int, dict[str, Any]] = {}

    def take(place: int, line: str) -> bool:
        if line.startswith("{"):
            found[place] = json.loads(line)
        return True

    on_hosts.run_on_hosts(arguments, [sys.executable, "-c", program], take, seconds)
    return found


# --- software and hardware ----------------------------------------------------------------------------------------------


def compare(names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """The findings about the hosts' software and hardware.

    Args:
        names: of the hosts, as the user has given them.
        facts: what `host_probes.FACTS` has printed on each.
    """
    seen: dict[tuple[str, str], str] = {}
    for name, own in zip(names, facts, strict=True):
        same = seen.setdefault((own["boot_id"], own["host"]), name)
        if same != name:
            yield Finding("hosts", "fail", f"{same} and {name} are one host, {own['host']}", "name each host once")
            return
        if own["problem"]:
            yield Finding(
                "MPI",
                "fail",
                f"on {name} it cannot be loaded: {own['problem']}",
                f"run `hvdlite doctor` on {name}, which says more",
            )
    for subject, fact, status, remedy in _EQUAL:
        values = {name: str(own[fact]) for name, own in zip(names, facts, strict=True)}
        if not any(values.values()):
            continue
        if len(set(values.values())) == 1:
            yield Finding(subject, "ok", f"{next(iter(values.values()))} on all hosts")
        else:
            found = "; ".join(f"{value or 'none'} on {name}" for name, value in values.items())
            yield Finding(subject, status, f"the hosts differ: {found}", remedy)
    yield from _networks(names, facts)


def _networks(names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """The IPv4 networks that all hosts are in, and addresses that two hosts both have."""
    by_network: dict[str, dict[str, str]] = {}
    owners: dict[str, list[str]] = {}
    for name, own in zip(names, facts, strict=True):
        for interface, address, mask, speed in own["interfaces"]:
            if ipaddress.ip_address(address).is_loopback:
                continue
            network = str(ipaddress.ip_network(f"{address}/{mask}", strict=False))
            rate = f", {speed} Mbit/s" if str(speed).isdigit() and int(speed) else ""
            by_network.setdefault(network, {}).setdefault(name, f"{interface} of {name} ({address}{rate})")
            owners.setdefault(address, []).append(f"{interface} of {name}")
    for address, several in owners.items():
        if len(several) > 1:
            yield Finding(
                "addresses",
                "warn",
                f"{' and '.join(several)} have the same address {address}, as bridges of containers do",
                "keep MPI off it: --network-interfaces names those to use",
            )
    shared = {network: list(of.values()) for network, of in by_network.items() if len(of) == len(set(names))}
    shared = {
        network: each for network, each in shared.items() if len({place.rpartition("(")[2] for place in each}) == len(each)
    }
    if shared:
        found = "; ".join(f"{network}: {', '.join(each)}" for network, each in shared.items())
        yield Finding("network", "ok", f"all hosts are in {found}")
    else:
        found = "; ".join(text for of in by_network.values() for text in of.values()) or "no interface has an address"
        yield Finding(
            "network",
            "warn",
            f"no IPv4 network has an interface of each host: {found}",
            "check that the hosts can route to each other",
        )


# --- messages -----------------------------------------------------------------------------------------------------------


def judge(names: Sequence[str], facts: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> Iterator[Finding]:
    """The findings about messages between hosts.

    Args:
        names: of the hosts.
        facts: as `compare` takes them.
        measured: what `host_probes.MEASURE` has printed on the first host.
    """
    for pair in measured["pairs"]:
        yield from _clock(names[0], names[pair["host"]], pair)
        yield from _messages(names[0], names[pair["host"]], (facts[0], facts[pair["host"]]), pair)
    size = f"{measured['bytes'] / (1 << 20):.3g} MiB"
    if not measured["right"]:
        yield Finding("allreduce", "fail", f"hvdlite's sum of {size} over {len(names)} hosts was wrong", "report this, please")
        return
    yield Finding(
        "allreduce",
        "ok",
        f"hvdlite has added {size} over {len(names)} hosts, rightly, at {_rate(measured['bus'])} (bus bandwidth)",
    )


def _clock(first: str, other: str, pair: Mapping[str, Any]) -> Iterator[Finding]:
    ahead = pair["offset"]
    how = "ahead of" if ahead > 0 else "behind"
    found = f"that of {other} is {_time(abs(ahead))} {how} that of {first}, to within {_time(pair['error'])}"
    if abs(ahead) > _CLOCK:
        remedy = "let chrony or another client of NTP set the clocks; hvdlite needs no equal clocks, but readers of logs do"
        yield Finding("clocks", "warn", found, remedy)
    else:
        yield Finding("clocks", "ok", found)


def _messages(first: str, other: str, facts: Sequence[Mapping[str, Any]], pair: Mapping[str, Any]) -> Iterator[Finding]:
    yield Finding("latency", "ok", f"8 bytes from {first} to {other} take {_time(pair['latency'])} one way, by MPI")
    found = f"large messages: {first} to {other} {_rate(pair['to'])}, back {_rate(pair['from'])}, by MPI"
    speeds = [
        max((int(speed) for _, _, _, speed in own["interfaces"] if str(speed).isdigit()), default=0) * 1e6 / 8 for own in facts
    ]
    speed = min(speeds)
    if speed and min(pair["to"], pair["from"]) < _PART_OF_SPEED * speed:
        yield Finding(
            "bandwidth",
            "warn",
            f"{found}; the interfaces promise {_rate(speed)}",
            "look for other traffic, and whether MPI takes the fast interface (--network-interfaces)",
        )
    else:
        yield Finding("bandwidth", "ok", found)


def _time(seconds: float) -> str:
    unit, factor = ("µs", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)
    return f"{seconds * factor:.3g} {unit}"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s"
