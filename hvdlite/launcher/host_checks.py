"""``hvdlite doctor --hosts a,b``: compares the hosts' software and hardware, and measures messages between them."""

import argparse
import ipaddress
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hvdlite.errors import HvdliteError, InvalidArgumentError
from hvdlite.launcher import host_probes, on_hosts
from hvdlite.launcher.checks import Finding, judged
from hvdlite.launcher.command import BY_SSH
from hvdlite.launcher.hosts import parse_hosts

_FACTS_SECONDS, _MEASURE_SECONDS = 60.0, 180.0
# In seconds. If the clocks of two hosts differ by more, the hosts' log lines are hard to compare.
_CLOCK = 0.1
# The part of an interface's speed that a message should reach.
_PART_OF_SPEED = 0.5
_FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")

# The facts that should be equal on all hosts: the subject, the fact, the status if the hosts differ, and the remedy.
_EQUAL = (
    ("hvdlite", "hvdlite", "fail", "install one version on all hosts: init() refuses different versions"),
    ("MPI", "mpi", "fail", "install one MPI in one version on all hosts, and let mpi4py load it"),
    ("Python", "python", "warn", "use one version: ranks send each other pickled objects"),
    ("mpi4py", "mpi4py", "warn", "install one version on all hosts"),
    ("numpy", "numpy", "warn", "install one version on all hosts"),
    *((name, name, "warn", "install one version on all hosts") for name in _FRAMEWORKS),
    ("place", "place", "warn", "install hvdlite and the program at one path on all hosts: mpirun starts them by one path"),
    ("processor", "processor", "warn", "all ranks wait for the slowest host, and frameworks may compute other last bits on it"),
    ("cores", "cores", "warn", "all ranks wait for the slowest host: start fewer ranks on it, or use equal hosts"),
)


def examine_hosts(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Checks ``arguments.hosts``, and yields each finding as soon as it is known.

    Raises:
        InvalidArgumentError: fewer than two hosts are given.
    """
    names = [host.name for host in parse_hosts(arguments.hosts)]
    if len(names) < 2:
        raise InvalidArgumentError(f"doctor --hosts {arguments.hosts}: name two hosts or more, in the form a,b")
    facts: dict[int, dict[str, Any]] = {}
    try:
        facts = _run(arguments, host_probes.FACTS, _FACTS_SECONDS)
        missing = [name for place, name in enumerate(names) if place not in facts]
        problem = f"no output came from {', '.join(missing)}" if missing else ""
    except HvdliteError as error:
        problem = str(error)
    found = problem or f"a program has run on each of {', '.join(names)}"
    yield judged("reach the hosts", not problem, found, BY_SSH, "fail")
    if problem:
        return
    failed = False
    for finding in compare(names, [facts[place] for place in range(len(names))]):
        failed = failed or finding.status == "fail"
        yield finding
    if failed:
        yield Finding("messages", "none", "not measured, because a job could not run on these hosts")
        return
    try:
        measured = _run(arguments, host_probes.MEASURE, _MEASURE_SECONDS)
    except HvdliteError as error:
        remedy = (
            "look for a firewall between the hosts (MPI uses any port), and name the network: `hvdlite run "
            "--network-interfaces eth0`, and for this command --mpi-args '--mca btl_tcp_if_include eth0'"
        )
        yield Finding("messages", "fail", f"a job of one rank on each host failed: {error}", remedy)
        return
    yield from judge(names, [facts[place] for place in range(len(names))], measured[0])


def _run(arguments: argparse.Namespace, program: str, seconds: float) -> dict[int, dict[str, Any]]:
    """Runs a program on each host; returns what the program has printed there as JSON, by the host's place in the list."""
    found: dict[int, dict[str, Any]] = {}

    def take(place: int, its: dict[str, Any]) -> bool:
        found[place] = its
        return True

    on_hosts.run_on_hosts(arguments, [sys.executable, "-c", program], take, seconds)
    return found


# --- software and hardware ----------------------------------------------------------------------------------------------


def compare(names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """The findings about the hosts' software and hardware.

    Args:
        names: the names of the hosts, as the user has given them.
        facts: for each host, the output of `host_probes.FACTS`.
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
                f"it cannot be loaded on {name}: {own['problem']}",
                f"run `hvdlite doctor` on {name}, which prints details",
            )
    for subject, fact, status, remedy in _EQUAL:
        values = {name: str(own[fact]) for name, own in zip(names, facts, strict=True)}
        if not any(values.values()):
            continue
        equal = len(set(values.values())) == 1
        each = "; ".join(f"{value or 'none'} on {name}" for name, value in values.items())
        found = f"{next(iter(values.values()))} on all hosts" if equal else f"the hosts differ: {each}"
        yield judged(subject, equal, found, remedy, status)
    yield from _networks(names, facts)


def _networks(names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """The findings about the IPv4 networks that all hosts are in, and about addresses that several hosts have."""
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
                "name the interfaces that MPI should use: --network-interfaces",
            )
    shared = {network: list(of.values()) for network, of in by_network.items() if len(of) == len(set(names))}
    shared = {
        network: each for network, each in shared.items() if len({place.rpartition("(")[2] for place in each}) == len(each)
    }
    if shared:
        found = "all hosts are in " + "; ".join(f"{network}: {', '.join(each)}" for network, each in shared.items())
    else:
        each = "; ".join(text for of in by_network.values() for text in of.values()) or "no interface has an address"
        found = f"the hosts have no IPv4 network in common: {each}"
    yield judged("network", bool(shared), found, "check that the hosts can route to each other")


# --- messages -----------------------------------------------------------------------------------------------------------


def judge(names: Sequence[str], facts: Sequence[Mapping[str, Any]], measured: Mapping[str, Any]) -> Iterator[Finding]:
    """The findings about messages between hosts.

    Args:
        names: the names of the hosts.
        facts: the same as for `compare`.
        measured: the output of `host_probes.MEASURE` on the first host.
    """
    for pair in measured["pairs"]:
        yield _clock(names[0], names[pair["host"]], pair)
        yield from _messages(names[0], names[pair["host"]], (facts[0], facts[pair["host"]]), pair)
    what = f"sum of {measured['bytes'] / (1 << 20):.3g} MiB over {len(names)} hosts"
    right = f"hvdlite got the right {what}, at {_rate(measured['bus'])} (bus bandwidth)"
    found = right if measured["right"] else f"hvdlite's {what} was wrong"
    yield judged("allreduce", measured["right"], found, "please report this error", "fail")


def _clock(first: str, other: str, pair: Mapping[str, Any]) -> Finding:
    ahead = pair["offset"]
    how = "ahead of" if ahead > 0 else "behind"
    found = f"the clock of {other} is {_time(abs(ahead))} {how} that of {first} (± {_time(pair['error'])})"
    remedy = "let chrony or another client of NTP set the clocks; hvdlite works with wrong clocks, but logs are hard to compare"
    return judged("clocks", abs(ahead) <= _CLOCK, found, remedy)


def _messages(first: str, other: str, facts: Sequence[Mapping[str, Any]], pair: Mapping[str, Any]) -> Iterator[Finding]:
    yield Finding("latency", "ok", f"8 bytes from {first} to {other} take {_time(pair['latency'])} one way, by MPI")
    found = f"large messages: {first} to {other} {_rate(pair['to'])}, back {_rate(pair['from'])}, by MPI"
    speeds = [
        max((int(speed) for _, _, _, speed in own["interfaces"] if str(speed).isdigit()), default=0) * 1e6 / 8 for own in facts
    ]
    speed = min(speeds)
    fast = min(pair["to"], pair["from"]) >= _PART_OF_SPEED * speed
    found += "" if fast else f"; the interfaces' speed is {_rate(speed)}"
    remedy = "check for other traffic, and make MPI use the fast interface (--network-interfaces)"
    yield judged("bandwidth", fast, found, remedy)


def _time(seconds: float) -> str:
    unit, factor = ("µs", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)
    return f"{seconds * factor:.3g} {unit}"


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.3g} GB/s"
