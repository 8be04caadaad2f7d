"""Runs a small program on each of several hosts, and passes on the JSON objects that it prints. The programs start like ranks
of ``hvdlite run``.
"""

import argparse
import json
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from hvdlite.errors import SystemFailure
from hvdlite.launcher import plan
from hvdlite.launcher.command import Wishes
from hvdlite.launcher.hosts import Host, format_hosts, parse_hosts
from hvdlite.launcher.job import JobOutcome, LaunchedJob, told_to_end
from hvdlite.launcher.output import RankOutput

_GRACE = 1.0  # the seconds in which the programs have to end when they are told to end


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say how programs are started on other hosts."""
    group = parser.add_argument_group("starting programs on other hosts", "these flags mean the same as for `hvdlite run`")
    plan.add_flags(group)


def run_on_hosts(
    arguments: argparse.Namespace,
    command: Sequence[str],
    take: Callable[[int, dict[str, Any]], bool],
    seconds: float | None = None,
) -> None:
    """Runs a program on each host of ``arguments.hosts`` until all programs have ended.

    Args:
        arguments: the parsed arguments, with ``hosts`` and the flags of `add_flags`.
        command: the command line of the program, the same on all hosts.
        take: a function that is called for each line of a program's stdout that is a JSON object, with the host's place in the
            list and the object. (Other lines are not the program's: a start-up file of Python on the host may print them.) If
            the function returns false, all programs are ended.
        seconds: the time after which the programs are ended; None for no limit.

    Raises:
        InvalidArgumentError: ``arguments.hosts`` is not a list of hosts.
        SystemFailure: the programs cannot be started, fail, or take too long. The error has their last output.
        KeyboardInterrupt: this process got a signal that asks it to end. The programs have ended then.
    """
    plan.refuse_nested("this command with --hosts")
    hosts = tuple(Host(host.name) for host in parse_hosts(arguments.hosts))
    wishes = Wishes(
        ssh_port=arguments.ssh_port,
        ssh_identity_file=arguments.ssh_identity_file,
        mpi_args=plan.words_of("--mpi-args", arguments.mpi_args),
    )
    chosen = plan.make(
        wishes, len(hosts), format_hosts(hosts), launcher=arguments.launcher, mpirun=arguments.mpirun, bind="none"
    )
    words = chosen.line.words
    if Path(words[0]).name == "srun" and "--overlap" not in words:  # a running job keeps its resources
        chosen = replace(chosen, line=replace(chosen.line, words=(*words, "--overlap")))
    late: list[bool] = []

    def give_up() -> None:
        late.append(True)
        job.interrupt(signal.SIGTERM)

    with open(os.devnull, "w") as nowhere:
        output = _LinesOfHosts(len(hosts), take, nowhere)
        job = LaunchedJob(chosen, command, output, grace=_GRACE)
        output.stop = lambda: job.interrupt(signal.SIGTERM)
        timer = threading.Timer(seconds or 0.0, give_up)
        if seconds is not None:
            timer.start()
        try:
            with told_to_end(job) as received:
                outcome = job.run()
        finally:
            timer.cancel()
    if received:
        raise KeyboardInterrupt
    if late:
        raise SystemFailure(
            f"a program on the hosts {arguments.hosts} did not end within {seconds:.0f} seconds{_words(outcome, output)}"
        )
    if outcome.status and not output.stopped:
        raise SystemFailure(f"a program could not be run on the hosts {arguments.hosts}{_words(outcome, output)}")


def _words(outcome: JobOutcome, output: "_LinesOfHosts") -> str:
    """The last output of the program that failed first, or of the launcher if no program has failed."""
    if outcome.failure is not None and outcome.words:
        return f": on host {outcome.failure.host} the program {outcome.failure.how}: {outcome.words[-1]}"
    said = [line.strip() for line in (*output.said, outcome.problem)]
    return ": " + " ".join(line for line in said if line.strip("-")) if any(said) else ""


class _LinesOfHosts(RankOutput):
    """Passes on the JSON objects in the lines of stdout, and keeps the output of stderr for error texts.

    Attributes:
        said: the last lines that the launcher itself has printed.
        stop: a function that ends the programs.
        stopped: has `take` returned false?
    """

    def __init__(self, hosts: int, take: Callable[[int, dict[str, Any]], bool], nowhere: TextIO) -> None:
        super().__init__(hosts, stdout=nowhere, stderr=nowhere)
        self._take = take
        self._rests: dict[int, str] = {}  # the beginnings of lines that arrive in pieces
        self.said: deque[str] = deque(maxlen=8)
        self.stop: Callable[[], None] = lambda: None
        self.stopped = False

    def line(self, kind: str, rank: int, text: str, ending: str) -> None:
        if kind != "o":
            super().line(kind, rank, text, ending)
            return
        whole = self._rests.pop(rank, "") + text
        if ending != "\n":
            self._rests[rank] = whole
        elif not self.stopped and (found := _object(whole)) is not None and not self._take(rank, found):
            self.stopped = True
            self.stop()

    def launcher(self, kind: str, text: str) -> None:
        self.said.append(text)


def _object(line: str) -> dict[str, Any] | None:
    """The JSON object that a line is; None if it is none."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
