"""``hvdlite top``: looks at a running job at regular intervals, and shows each rank's step time, where the rank spends its
time, and for which rank the others wait.

It asks the ranks of this host through their unix sockets. With ``-H``, mpirun or srun starts a small program on each host, as
it starts ranks, and this program asks the ranks there. No process listens on a network.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from hvdlite._version import __version__
from hvdlite.errors import InvalidArgumentError, SystemFailure, UnsupportedError
from hvdlite.launcher import on_hosts, plan
from hvdlite.launcher.figures import Answer, JobFigures, figures_of_job
from hvdlite.launcher.hosts import parse_hosts
from hvdlite.launcher.view_agent import EVERY_JOB, looks

EPILOG = """\
examples:
  hvdlite top                          your job on this host, if it is the only one
  hvdlite top 20756                    the job whose rank 0 has this process id
  hvdlite top -H node1,node2           a job on two hosts
  hvdlite top --once --json            one look, for scripts

docs/top.md explains each figure.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of ``hvdlite top``."""
    add = parser.add_argument
    add("job", nargs="?", default="", metavar="JOB", help="the job's name, or the process id of its rank 0 [the only job]")
    add("-H", "--hosts", default="", metavar="HOSTS", help="the hosts to ask, in the form a,b [this host]")
    add("--interval", type=_seconds, default=1.0, metavar="S", help="seconds from one look to the next [1]")
    add("--once", action="store_true", help="prints the figures of one interval, and then ends")
    add("--json", action="store_true", help="prints each look as one line of JSON")
    on_hosts.add_flags(parser)


def _seconds(text: str) -> float:
    number = plan.seconds(text)
    if not 0.05 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.05 to 3600")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Shows the job until it ends, or for one interval with ``--once``. Returns the exit status: 1 if with ``--once`` the job
    ended before the second look, otherwise 0.
    """
    with _display(arguments) as show:
        viewer = JobViewer(arguments.job, arguments.hosts, show, once=arguments.once)
        if arguments.hosts:
            _ask_hosts(arguments, viewer)
        else:
            _ask_here(arguments, viewer)
    if viewer.ended:
        print(f"hvdlite top: the job {viewer.job} has ended", file=sys.stderr)
    return int(arguments.once and viewer.ended)


class JobViewer:
    """Computes the figures of one job from the answers of its ranks.

    Args:
        wanted: the job's name, the process id of its rank 0, or "" for the only job.
        hosts: the hosts that are asked, for error texts; empty for this host.
        show: a function that is called with the figures of each look but the first.
        once: end when the first figures are shown?

    Attributes:
        job: the name of the job; empty before the first look.
        ended: have all ranks of the job on the asked hosts ended?
    """

    def __init__(self, wanted: str, hosts: str, show: Callable[[JobFigures], None], once: bool = False) -> None:
        self.job, self.ended = "", False
        self._wanted, self._hosts, self._show, self._once = wanted, hosts, show, once
        self._before: dict[int, Answer] = {}
        self._last: JobFigures | None = None

    def see(self, answers: Sequence[Answer]) -> bool:
        """Takes the answers of one look. Returns false if there is nothing more to see: the job has ended, or this was the
        second look and the viewer shows figures only once.

        Raises:
            InvalidArgumentError: no job or several jobs fit `wanted`.
            SystemFailure: no rank of the job answers the first look, or the job runs another version of hvdlite, whose answers
                may have another meaning.
        """
        first = not self.job
        if first:
            self.job = choose_job(answers, self._wanted, self._hosts)
        if self.job not in {answer["job"] for answer in answers}:  # an elastic job has a new name if its rank 0 was lost
            processes = {(answer["host"], answer["pid"]) for answer in self._before.values()}
            self.job = next((each["job"] for each in answers if (each["host"], each["pid"]) in processes), self.job)
        mine = [answer for answer in answers if answer["job"] == self.job]
        if not mine:
            self.ended = True
            return False
        spoken = {answer["rank"]: answer for answer in mine if not answer.get("silent")}
        if first and not spoken:
            raise SystemFailure(
                f"no rank of the job {self.job} answers: its processes are stopped, or native code in them holds Python's GIL"
            )
        for answer in spoken.values() if first else ():
            if answer["hvdlite"] != __version__:
                raise SystemFailure(
                    f"the job {self.job} runs hvdlite {answer['hvdlite']}, and this is hvdlite {__version__}: use the "
                    "`hvdlite top` of the job's Python environment"
                )
        if not first:
            self._last = figures_of_job(self._before, mine, self._last.last_stall if self._last else None)
            self._show(self._last)
        self._before.update(spoken)
        return first or not self._once


def choose_job(answers: Sequence[Answer], wanted: str, hosts: str = "") -> str:
    """The name of the job that the user wants to see.

    Args:
        answers: the answers of the first look. Jobs whose ranks do not answer are found, too.
        wanted: the job's name, the process id of its rank 0, or "" for the only job.
        hosts: the hosts that were asked, for error texts; empty for this host.

    Raises:
        InvalidArgumentError: no job fits `wanted`, or several jobs fit, which the error lists.
    """
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        if wanted in ("", answer["job"], answer["job"].partition("@")[0]):
            found.setdefault(answer["job"], []).append(answer)
    where = f"on {hosts}" if hosts else "on this host"
    if not found:
        raise InvalidArgumentError(
            f"hvdlite top finds no running job{f' {wanted}' if wanted else ''} of yours {where}. hvdlite top finds a job "
            "after its init(), unless HVDLITE_LIVE_VIEW=0; -H a,b asks other hosts; a container's jobs are only found inside it"
        )
    if len(found) > 1:
        lines = [f"  hvdlite top {job}   {_described(ranks)}" for job, ranks in found.items()]
        raise InvalidArgumentError("you have several jobs {}; name one:\n{}".format(where, "\n".join(lines)))
    return next(iter(found))


def _described(ranks: Sequence[Answer]) -> str:
    spoken = next((each for each in ranks if not each.get("silent")), None)
    size = f" of {spoken['stats']['size']}" if spoken else ""
    return f"{spoken['program'] if spoken else 'silent'}, {len(ranks)}{size} ranks here"


# --- asking the ranks ---------------------------------------------------------------------------------------------------


def _ask_here(arguments: argparse.Namespace, viewer: JobViewer) -> None:
    for answers in looks(arguments.job, arguments.interval):
        if not viewer.see(answers):
            return


def _ask_hosts(arguments: argparse.Namespace, viewer: JobViewer) -> None:
    agent = [sys.executable, "-m", "hvdlite.launcher.view_agent", str(arguments.interval), arguments.job or EVERY_JOB]
    together = LooksTogether(len(parse_hosts(arguments.hosts)), viewer)
    on_hosts.run_on_hosts(arguments, agent, together.take)


class LooksTogether:
    """Joins the looks of several hosts: gives the viewer the answers of all hosts when each host has sent a look. If a host
    sends several looks before another host has sent one, the last of these looks counts.

    Args:
        hosts: the number of hosts.
        viewer: gets the answers.
    """

    def __init__(self, hosts: int, viewer: JobViewer) -> None:
        self._hosts, self._viewer = hosts, viewer
        self._latest: dict[int, list[Answer]] = {}

    def take(self, host: int, look: dict[str, Any]) -> bool:
        """Takes a look that the program on a host has printed. Returns false if the viewer has nothing more to see.

        Args:
            host: the host's place in the list of hosts.
            look: the look; ``answers`` has the answers of the host's ranks.
        """
        self._latest[host] = look["answers"]
        if len(self._latest) < self._hosts:
            return True
        answers = [answer for found in self._latest.values() for answer in found]
        self._latest.clear()
        return self._viewer.see(answers)


# --- showing the figures ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _display(arguments: argparse.Namespace) -> Iterator[Callable[[JobFigures], None]]:
    if arguments.json:
        yield lambda figures: print(json.dumps(asdict(figures)), flush=True)
        return
    try:
        from hvdlite.launcher import top_page
    except ImportError as error:
        raise UnsupportedError(
            f"hvdlite top needs the package rich, which cannot be imported ({error}): pip install 'hvdlite[top]', or use "
            "--json, which works without it"
        ) from None
    with top_page.page(live=not arguments.once and sys.stdout.isatty()) as show:
        yield show
