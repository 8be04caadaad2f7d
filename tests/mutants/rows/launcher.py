"""The command hvdlite: hosts, plans, cores, output, who failed first."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "launcher-slots-added",
        "of several entries of a host the last one counts",
        "hvdlite/launcher/hosts.py",
        "slots[host.name] = slots.get(host.name, 0) + host.slots",
        "slots[host.name] = host.slots",
        guards.LAUNCHER_HOSTS,
    ),
    Mutant(
        "launcher-slurm-tasks",
        "Slurm's list of tasks repeats each number once too often",
        "hvdlite/launcher/slurm.py",
        "counts += [int(found[1])] * int(found[2] or 1)",
        "counts += [int(found[1])] * (int(found[2] or 0) + 1)",
        guards.LAUNCHER_HOSTS,
    ),
    Mutant(
        "launcher-cores-overlap",
        "the cores of a host's ranks overlap by one",
        "hvdlite/launcher/rank.py",
        "for core in available[local_rank * each : (local_rank + 1) * each] for cpu in core}",
        "for core in available[local_rank * each : (local_rank + 1) * each + 1] for cpu in core}",
        guards.LAUNCHER_HOSTS,
    ),
    Mutant(
        "launcher-blames-told",
        "a rank that was told to end may be named as the one that failed first",
        "hvdlite/launcher/output.py",
        "    failed.sort(key=lambda ending: ending.stopped)  # the sort is stable\n",
        "",
        guards.LAUNCHER_OUTPUT,
    ),
    Mutant(
        "launcher-blames-first-heard",
        "a rank that reports another's failure is named as its cause",
        "hvdlite/launcher/output.py",
        "found = _blamed(found.rank, failed, started, tail(found.rank)) or found",
        "found = _blamed(found.rank, failed, started, ()) or found",
        guards.LAUNCHER_OUTPUT,
    ),
    Mutant(
        "launcher-signal-status",
        "a rank that was ended by a signal gives the signal's number as its status",
        "hvdlite/launcher/output.py",
        "return self.code if self.code >= 0 else 128 - self.code",
        "return abs(self.code)",
        guards.LAUNCHER_OUTPUT,
    ),
    Mutant(
        "launcher-oversubscribes",
        "more ranks than slots are started, and no error says so",
        "hvdlite/launcher/command.py",
        "if wishes.hosts and wishes.np > slots and not wishes.oversubscribe:",
        "if wishes.hosts and wishes.np > slots and wishes.oversubscribe is None:",
        ("tests/unit/test_launcher.py", "tests/unit/test_launcher_lines.py"),
    ),
)
