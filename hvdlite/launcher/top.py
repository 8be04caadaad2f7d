"""``hvdlite top``: looks at a running job again and again: each rank's step time, where its time goes, whom others wait for.

Ranks of this host are asked through their unix sockets. Other hosts are asked by a small program on each, which the launcher of
the MPI starts there as it starts ranks; nothing listens on a network.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence

from hvdlite._version import __version__
from hvdlite.errors import InvalidArgumentError, SystemFailure, UnsupportedError
from hvdlite.launcher import on_hosts
from hvdlite.launcher.figures import Answer, JobFigures, figures_of_job
from hvdlite.launcher.view_agent import EVERY_JOB, looks

__all__ = ["EPILOG", "JobViewer", "LooksTogether", "add_flags", "choose_job", "run"]

EPILOG = """\
examples:
  hvdlite top                          the only job of yours on this host
  hvdlite top 20756                    the job whose rank 0 has this process id
  hvdlite top -H node1,node2           a job on two hosts
  hvdlite top --once --json            one look, for scripts

docs/top.md says what each figure means.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of ``hvdlite top``."""
    add = parser.add_argument
    add("job", nargs="?", default="", metavar="JOB", help="its name, or the process id of its rank 0 [the only job there is]")
    add("-H", "--hosts", default="", metavar="HOSTS", help="the hosts to ask, as a,b [this host]")
    add("--interval", type=_seconds, default=1.0, metavar="S", help="seconds from one look to the next [1]")
    add("--once", action="store_true", help="prints the figures of one interval, and ends")
    add("--json", action="store_true", help="prints each look as one line of JSON")
    on_hosts.add_flags(parser)


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.05 <= number <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.05 to 3600")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Shows the job until it ends, or for one interval; returns the exit status."""
    with _display(arguments) as show:
        viewer = JobViewer(arguments.job, arguments.hosts, show)
        try:
            if arguments.hosts:
                _ask_hosts(arguments, viewer)
            else:
                _ask_here(arguments, viewer)
        except KeyboardInterrupt:
            return 130
    if viewer.ended:
        print(f"hvdlite top: the job {viewer.job} has ended", file=sys.stderr)
    return int(arguments.once and viewer.ended)


class JobViewer:
    """Makes figures of the answers of one job.

    Args:
        wanted: the job's name or a part of it, as `choose_job` takes it.
        hosts: those that are asked, for errors; empty for this host.
        show: is called with the figures of each look but the first.

    Attributes:
        job: the name of the job, from the first look on.
        ended: is no rank of it left on the asked hosts?
    """

    def __init__(self, wanted: str, hosts: str, show: Callable[[JobFigures], None]) -> None:
        self.job, self.ended = "", False
        self._wanted, self._hosts, self._show = wanted, hosts, show
        self._before: dict[int, Answer] = {}
        self._last: JobFigures | None = None

    def see(self, answers: Sequence[Answer]) -> bool:
        """Takes the answers of one look; false once the job has ended.

        Raises:
            InvalidArgumentError: there is no such job, or there are several.
            SystemFailure: no rank of the job answers the first look, or the job has another hvdlite, whose answers may mean
            something else.
        """
        first = not self.job
        if first:
            self.job = choose_job(answers, self._wanted, self._hosts)
        mine = [answer for answer in answers if answer["job"] == self.job]
        if not mine:
            self.ended = True
            return False
        spoken = {answer["rank"]: answer for answer in mine if not answer.get("silent")}
        if first and not spoken:
            raise SystemFailure(
                f"no rank of the job {self.job} answers: its processes are stopped, or native code holds Python's GIL in them"
            )
        for answer in spoken.values() if first else ():
            if answer["hvdlite"] != __version__:
                raise SystemFailure(
                    f"the job {self.job} runs hvdlite {answer['hvdlite']}, and this is {__version__}: take the `hvdlite top` "
                    "of the job's own environment"
                )
        if not first:
            self._last = figures_of_job(self._before, mine, self._last.last_stall if self._last else None)
            self._show(self._last)
        self._before.update(spoken)
        return True


def choose_job(answers: Sequence[Answer], wanted: str, hosts: str = "") -> str:
    """The name of the one job that is wanted.

    Args:
        answers: of the first look; a rank that is silent counts.
        wanted: a job's name, the process id of its rank 0, or "" for the only one.
        hosts: those that were asked, for errors; empty for this host.

    Raises:
        InvalidArgumentError: there is none, or several; names them.
    """
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        if wanted in ("", answer["job"], answer["job"].partition("@")[0]):
            found.setdefault(answer["job"], []).append(answer)
    where = f"on {hosts}" if hosts else "on this host"
    if not found:
        raise InvalidArgumentError(
            f"hvdlite top finds no running job{f' {wanted}' if wanted else ''} of yours {where}. A job shows up when its ranks "
            "have called init(), unless HVDLITE_LIVE_VIEW=0; -H a,b asks other hosts; in a container, look from inside of it"
        )
    if len(found) > 1:
        lines = [f"  hvdlite top {job}   {_described(ranks)}" for job, ranks in found.items()]
        raise InvalidArgumentError("several jobs of yours run {}; name one:\n{}".format(where, "\n".join(lines)))
    return next(iter(found))


def _described(ranks: Sequence[Answer]) -> str:
    spoken = next((each for each in ranks if not each.get("silent")), None)
    size = f" of {spoken['stats']['size']}" if spoken else ""
    return f"{spoken['program'] if spoken else 'silent'}, {len(ranks)}{size} ranks here"


# --- whom to ask --------------------------------------------------------------------------------------------------------

_LOOKS_ONCE = 2  # figures are differences


def _ask_here(arguments: argparse.Namespace, viewer: JobViewer) -> None:
    for answers in looks(arguments.job, arguments.interval, _LOOKS_ONCE if arguments.once else 0):
        if not viewer.see(answers):
            return


def _ask_hosts(arguments: argparse.Namespace, viewer: JobViewer) -> None:
    agent = [sys.executable, "-m", "hvdlite.launcher.view_agent", str(arguments.interval)]
    agent += [str(_LOOKS_ONCE if arguments.once else 0), arguments.job or EVERY_JOB]
    together = LooksTogether(len(on_hosts.names_of(arguments.hosts)), viewer)
    on_hosts.run_on_hosts(arguments, agent, together.take)


class LooksTogether:
    """Hands over a look when each host has sent one.

    Args:
        hosts: how many.
        viewer: gets the looks.
    """

    def __init__(self, hosts: int, viewer: JobViewer) -> None:
        self._hosts, self._viewer = hosts, viewer
        self._latest: dict[int, list[Answer]] = {}

    def take(self, host: int, line: str) -> bool:
        """Takes a line of a host's agent; false once the job has ended."""
        self._latest[host] = json.loads(line)["answers"]
        if len(self._latest) < self._hosts:
            return True
        answers = [answer for found in self._latest.values() for answer in found]
        self._latest.clear()
        return self._viewer.see(answers)


# --- how to show it -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _display(arguments: argparse.Namespace) -> Iterator[Callable[[JobFigures], None]]:
    if arguments.json:
        yield lambda figures: print(json.dumps(figures.as_dict()), flush=True)
        return
    try:
        from hvdlite.launcher import top_page
    except ImportError as error:
        raise UnsupportedError(
            f"hvdlite top draws with the package rich, which cannot be imported ({error}): pip install 'hvdlite[top]', or take "
            "--json, which needs nothing"
        ) from None
    with top_page.page(live=not arguments.once and sys.stdout.isatty()) as show:
        yield show
