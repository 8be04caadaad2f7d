"""A rank fails in every way, under both launchers and in elastic training: the others say why, or go on, and nothing stays.

How soon, and all that does not depend on processes and launchers, is shown in virtual time (tests/sim, endings).
docs/failures.md shows the same cases as they came out in one run (`make failures`).
"""

import re

import pytest
from support.failure_cases import CASES, MODES, Case, Outcome, run_cases
from support.job import launcher_has_ulfm
from support.shared_memory import nothing_left_behind

from hvdlite.knobs import KNOBS

WHO = r"rank 1 \(host \S+, pid \d+\) "
DIED = WHO + "ended without telling the other ranks"
CAUSES = {
    "raise": WHO + "raised ValueError: bad batch 17",
    "exit 3": WHO + "has left",
    "exit 0": WHO + "has left",
    "os._exit 4": DIED,
    "SIGKILL": DIED,
    "SIGSEGV": DIED,
    "SIGSTOP": r"rank 1 \(host \S+, pid \d+\)",
    "host lost": r"rank [12] \(host h1, pid \d+\) ",  # either of those there
    "link cut": WHO.rstrip(),
}
# Where the engine lives, so that there are operations to tell of.
RECORDED = ("negotiation", "collective", "computing")
HAS_STALL_LIMIT = any(knob.name == "stall_shutdown_time_seconds" for knob in KNOBS)


@pytest.fixture(scope="module")
def outcomes(request) -> dict[Case, Outcome]:
    """All cases that this run of the tests asks for, run side by side."""
    wanted = [
        item.callspec.params["case"] for item in request.session.items if item.path == request.path and "case" in _params(item)
    ]
    modes = MODES if any(case.mode != "mpirun" for case in wanted) and launcher_has_ulfm() else ("mpirun",)
    with nothing_left_behind():
        return run_cases(case for case in wanted if case.mode in modes and _runs(case))


def _params(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _runs(case: Case) -> bool:
    return case.ending != "SIGSTOP" or HAS_STALL_LIMIT


def _marked(case: Case) -> object:
    return pytest.param(case, id=str(case), marks=[pytest.mark.slow] if case.slow else [])


@pytest.mark.parametrize("case", [_marked(case) for case in CASES])
def test_the_others_say_why_and_nothing_stays(case: Case, outcomes: dict[Case, Outcome]) -> None:
    if case not in outcomes:
        pytest.skip("takes the stall limit" if not _runs(case) else "this MPI has no launcher with fault tolerance")
    outcome = outcomes[case]
    assert not outcome.job.timed_out, outcome.report()
    assert not outcome.orphans, outcome.report()
    if case.goes_on:
        sizes = {rank: ranks for rank, (_, ranks) in outcome.went_on.items()}
        assert sizes == dict.fromkeys(case.survivors, len(case.survivors)), outcome.report()
        assert outcome.job.returncode == 0, outcome.report()
        return
    if case.mode == "elastic" and case.place == "shutdown":
        return  # all had done their part, and a loss is no failure any more
    check_code(outcome)
    if (case.ending, case.place) in (("exit 0", "shutdown"), ("exit 3", "shutdown")):
        return  # all had done their part
    spoke = False
    for rank in case.survivors:
        heard = [text for one in (outcome.said, outcome.raised) if rank in one for _, text in [one[rank]]]
        known = any(re.search(CAUSES[case.ending], text) for text in heard)
        spoke = spoke or bool(heard)
        if the_launcher_ends_all(case):
            assert known or all("SIGTERM ends this rank" in text for text in heard), outcome.report()
            continue
        assert known, outcome.report()
        if case.place in RECORDED:
            assert rank in outcome.records, outcome.report()
        if case.mode != "mpirun" and case.place in ("init", *RECORDED) and not ended_all_the_same(case):
            assert rank in outcome.raised or rank in outcome.went_on, outcome.report()
    assert spoke or (the_launcher_ends_all(case) and case.hosts), outcome.report()


def the_launcher_ends_all(case: Case) -> bool:
    """A death without fault tolerance: mpirun ends the others a quarter of a second later, on a busy machine before they know.

    On another host they know nothing before: Open MPI aborts the ranks that had a connection to the dead one.
    """
    if case.mode != "mpirun":
        return False
    # A rank that raises waits for what the engines of the others log, but in these places there is no engine.
    alone = case.ending == "raise" and case.place in ("init", "shutdown")
    return alone or case.ending in ("os._exit 4", "SIGKILL", "SIGSEGV", "host lost")


def ended_all_the_same(case: Case) -> bool:
    """Open MPI's mpirun of several hosts ends the job after another exit code than 0, or with a daemon, also with --with-ft."""
    if case.mode == "elastic" and case.ending == "host lost":
        return True  # before or after the others have gone on
    return bool(case.hosts) and case.place == "computing" and case.ending in ("raise", "host lost")


def check_code(outcome: Outcome) -> None:
    """Of mpirun: of the rank that failed, where nobody else ended before; never 0 if one failed."""
    case, code = outcome.case, outcome.job.returncode
    if case.ending in ("host lost", "link cut"):
        return  # Open MPI's mpirun says 0, or waits for its daemon there
    if case.place == "shutdown" and case.ending.startswith("exit"):
        assert code == int(case.ending[-1]), outcome.report()
    else:
        assert code != 0, outcome.report()
    expected = {"os._exit 4": 4, "SIGKILL": 137, "raise": 1}.get(case.ending)
    if case.mode == "mpirun" and not case.hosts and expected is not None:
        assert code == expected, outcome.report()
