"""What hvdlite top makes of answers: figures, the choice of the job, the page. Answers are made up here, with known figures."""

import argparse
import io
import json
import sys
from dataclasses import asdict

import pytest

from hvdlite import launcher, view_socket
from hvdlite._version import __version__
from hvdlite.errors import InvalidArgumentError, SystemFailure
from hvdlite.launcher import cli, on_hosts, top, view_agent
from hvdlite.launcher.figures import figures_of_job, figures_of_rank
from hvdlite.live_view import oldest_operation


def answer(rank=0, seconds=10.0, host="a", pid=None, job="7@a", size=4, oldest=None, **stats):
    usual = {"steps": 0, "operations": 5, "exposed_seconds": 1.0, "exposed_moving_seconds": 0.0, "moving_seconds": 0.0}
    usual |= {"job": 1, "bus_bytes": 0, "waited_for_seconds": [0.0] * size}
    return {
        **{"job": job, "rank": rank, "host": host, "pid": 100 + rank if pid is None else pid, "program": "x.py"},
        **{
            "hvdlite": __version__,
            "hosts": {"a": 2, "b": 2},
            "memory_bytes": 1 << 30,
            "where": "x.py:1 f > lib.py:2 g > lib.py:3 h",
        },
        "oldest": oldest,
        "stats": {"rank": rank, "size": size, "seconds": seconds, **usual, **stats},
    }


def silent(rank, host="a", job="7@a"):
    return {"job": job, "rank": rank, "host": host, "pid": 100 + rank, "silent": True}


def test_shares_and_means_of_the_time_between_two_answers():
    before = answer(steps=10, exposed_seconds=1.0, exposed_moving_seconds=0.5, moving_seconds=1.0, bus_bytes=1000)
    after = answer(
        seconds=12.0,
        **{"steps": 14, "exposed_seconds": 2.0, "exposed_moving_seconds": 0.7, "moving_seconds": 1.5, "bus_bytes": 6000},
        waited_for_seconds=[0.0, 0.0, 0.5, 0.0],
    )
    found = figures_of_rank(before, after)
    assert (found.seconds, found.steps, found.step_seconds) == (2.0, 4, 0.5)
    assert (found.computing, found.waiting, found.communicating) == pytest.approx((0.5, 0.4, 0.1))
    assert found.bytes_per_second == pytest.approx(10_000)
    assert found.blocked_on == {2: 0.25}


def test_what_is_not_known_is_none():
    same = figures_of_rank(answer(), answer(seconds=11.0))
    assert (same.step_seconds, same.bytes_per_second, same.steps) == (None, None, 0)
    assert same.computing == 1.0
    elsewhere = answer(seconds=2.0, size=5)  # an elastic job that has lost a rank since
    elsewhere["stats"]["job"] = 0
    for before in ({}, answer(pid=3), answer(job="9@a"), elsewhere):
        found = figures_of_rank(before, answer(seconds=11.0))
        assert (found.seconds, found.steps, found.computing, found.blocked_on) == (None, None, None, None)
        assert found.memory_bytes == 1 << 30
    callbacks = figures_of_rank(answer(exposed_seconds=0.0), answer(seconds=11.0, exposed_seconds=0.0))
    assert (callbacks.computing, callbacks.waiting, callbacks.communicating) == (None, None, None)
    threads = figures_of_rank(answer(), answer(seconds=11.0, exposed_seconds=4.0))
    assert threads.computing is None


def test_a_wait_that_began_before_the_first_answer_makes_no_share_above_1():
    found = figures_of_rank(answer(), answer(seconds=11.0, exposed_seconds=2.05, exposed_moving_seconds=0.41))
    assert (found.computing, found.waiting + found.communicating) == (0.0, pytest.approx(1.0))


def test_whom_the_others_wait_for():
    before = {rank: answer(rank) for rank in range(3)}
    after = [answer(rank, 11.0, waited_for_seconds=[0.0, 0.1, 0.4 if rank != 2 else 0.0, 0.0]) for rank in range(3)]
    found = figures_of_job(before, after)
    assert (found.waited_for, found.waited_for_share) == (2, pytest.approx(0.4))
    assert figures_of_job(before, [answer(rank, 11.0) for rank in range(3)]).waited_for is None


def test_ranks_that_are_silent_or_gone_and_hosts_that_were_not_asked():
    before = {0: answer(0), 1: answer(1), 2: silent(2)}
    found = figures_of_job(before, [silent(2), answer(0, 11.0)])
    assert [(each.rank, each.state) for each in found.ranks] == [(0, "answers"), (1, "ended"), (2, "silent")]
    assert found.not_asked == {"b": 2}
    assert json.loads(json.dumps(asdict(found)))["ranks"][2]["computing"] is None


def test_the_last_stall_is_remembered():
    stalled = {"operation": "allreduce of 'x'", "seconds": 1.5, "stage": "announced"}
    first = figures_of_job({0: answer()}, [answer(0, 11.0, oldest=stalled)])
    assert first.last_stall == {"rank": 0, **stalled, "looks_ago": 0}
    second = figures_of_job({0: answer()}, [answer(0, 12.0, oldest={**stalled, "seconds": 0.5})], first.last_stall)
    assert second.last_stall == {"rank": 0, **stalled, "looks_ago": 1}
    assert figures_of_job({0: answer()}, [answer(0, 12.0)]).last_stall is None


def test_the_oldest_operation_is_read_in_the_flight_record():
    record = (
        "  #3 allreduce of 'a' in process set 0, float32[5]: submitted 9.100 s ago, done (9.000 s ago)\n"
        "  #4 allreduce of 'b: c' in process set 0, float32[5]: submitted 0.900 s ago, moving data (0.100 s ago)\n"
        "  #5 broadcast of 'd' from rank 1 in process set 0, int8[]: submitted 1.250 s ago, announced, waiting for other ranks "
        "(1.200 s ago)\n"
        "  #6 allreduce of 'e' in process set 0, float32[5]: submitted 7.000 s ago, failed (0.200 s ago)\n"
    )
    stage = "announced, waiting for other ranks"
    operation = "broadcast of 'd' from rank 1 in process set 0, int8[]"
    assert oldest_operation(record) == {"operation": operation, "seconds": 1.25, "stage": stage}
    assert oldest_operation("") is None


# --- which job ----------------------------------------------------------------------------------------------------------


def test_the_only_job_is_chosen_and_several_are_named():
    one, other = [answer(0), silent(1)], [answer(0, job="8@a", size=1)]
    assert top.choose_job(one, "") == "7@a"
    assert top.choose_job([*one, *other], "8") == top.choose_job([*one, *other], "8@a") == "8@a"
    with pytest.raises(
        InvalidArgumentError, match=r"(?s)several jobs.*top 7@a   x.py, 2 of 4 ranks here.*top 8@a   x.py, 1 of 1"
    ):
        top.choose_job([*one, *other], "")
    with pytest.raises(InvalidArgumentError, match=r"finds no running job 9 of yours on this host"):
        top.choose_job(one, "9")
    with pytest.raises(InvalidArgumentError, match=r"finds no running job of yours on a,b"):
        top.choose_job([], "", "a,b")


def test_a_job_that_does_not_answer_the_first_look():
    with pytest.raises(SystemFailure, match="no rank of the job 7@a answers: its processes are stopped"):
        top.JobViewer("", "", print).see([silent(0)])


def test_a_job_with_another_hvdlite():
    with pytest.raises(
        SystemFailure, match=r"the job 7@a runs hvdlite 0\.0\.1, and this is .*: use the `hvdlite top` of the job's"
    ):
        top.JobViewer("", "", print).see([{**answer(0), "hvdlite": "0.0.1"}])


def test_a_viewer_goes_on_while_all_ranks_are_silent():
    shown = []
    viewer = top.JobViewer("", "", shown.append)
    assert viewer.see([answer(0)])
    assert viewer.see([silent(0)])
    assert viewer.see([answer(0, 14.0, steps=2)])
    assert [each.ranks[0].state for each in shown] == ["silent", "answers"]
    assert shown[1].ranks[0].step_seconds == 2.0
    assert not viewer.see([answer(0, job="8@a", pid=8)])
    assert viewer.ended


def test_a_viewer_follows_an_elastic_job_that_has_lost_its_rank_0():
    shown = []
    viewer = top.JobViewer("", "", shown.append)
    assert viewer.see([answer(0, size=3), answer(1, size=3), answer(2, size=3)])
    after = [answer(rank, 2.0, pid=101 + rank, job="101@a", size=2) for rank in range(2)]
    assert viewer.see([answer(0, job="8@a", pid=8), *after])
    assert (viewer.job, shown[0].job, shown[0].size) == ("101@a", "101@a", 2)


def test_no_job(capsys, monkeypatch):
    monkeypatch.setattr(view_socket, "addresses", list)
    assert cli.main(["top", "--once", "--json"]) == 2
    assert "hvdlite top finds no running job of yours on this host" in capsys.readouterr().err


def test_a_job_that_ends_before_the_second_look(capsys, monkeypatch):
    found = iter([[answer(0)], []])
    monkeypatch.setattr(top, "looks", lambda *arguments: found)
    assert cli.main(["top", "--once", "--json"]) == 1
    assert capsys.readouterr().err == "hvdlite top: the job 7@a has ended\n"


def test_the_table_of_sockets(tmp_path, monkeypatch):
    monkeypatch.setattr(view_socket.os, "getuid", lambda: 5)
    table = tmp_path / "unix"
    table.write_text(
        "Num       RefCount Protocol Flags    Type St Inode Path\n"
        "0: 2 0 00010000 0001 01 9 @hvdlite-view:5:7@a:1:77:0f\n"
        "0: 2 0 00010000 0001 01 9 @hvdlite-view:5:7@a:0:76:0f\n"
        "0: 3 0 00000000 0001 03 9 @hvdlite-view:5:7@a:0:76:0f\n"  # a connection to it
        "0: 2 0 00010000 0001 01 9 @hvdlite-view:55:7@a:0:76:0f\n"  # another user's
        "0: 2 0 00010000 0001 01 9 @hvdlite-view:5:7@a:x:76:0f\n"
        "0: 2 0 00010000 0001 01 9\n"
    )
    assert [(each.job, each.rank, each.pid) for each in view_socket.addresses(str(table))] == [("7@a", 0, 76), ("7@a", 1, 77)]


# --- hosts and pages ----------------------------------------------------------------------------------------------------


def say(together, host, *answers):
    """The program on a host prints a look."""
    return together.take(host, {"host": "h", "answers": answers})


def test_looks_of_several_hosts_are_put_together():
    shown = []
    together = top.LooksTogether(2, top.JobViewer("", "a,b", shown.append))

    assert say(together, 0, answer(0))
    assert say(together, 1, answer(2, host="b"))
    assert say(together, 0, answer(0, 11.0))
    assert not shown
    assert say(together, 1, answer(2, 11.5, host="b"))
    assert [(each.rank, each.seconds) for each in shown[0].ranks] == [(0, 1.0), (2, 1.5)]
    assert shown[0].not_asked == {}
    assert say(together, 0)
    assert not say(together, 1)


def test_figures_of_one_look_wait_for_the_host_that_is_late():
    """The program on host b starts after host a has sent three looks. With a fixed number of looks, nothing would be shown."""
    shown = []
    together = top.LooksTogether(2, top.JobViewer("", "a,b", shown.append, once=True))

    for seconds in (10.0, 11.0, 12.0):
        assert say(together, 0, answer(0, seconds))
    assert say(together, 1, answer(2, 12.0, host="b"))
    assert say(together, 0, answer(0, 13.0))
    assert not shown
    assert not say(together, 1, answer(2, 13.5, host="b"))
    assert [(each.rank, each.seconds) for each in shown[0].ranks] == [(0, 1.0), (2, 1.5)]


def test_objects_of_hosts_come_in_pieces_and_between_lines_of_other_programs():
    taken, ended = [], []

    def take(host, found):
        taken.append((host, found))
        return found != {"last": 1}

    lines = on_hosts._LinesOfHosts(2, take, io.StringIO())
    lines.stop = lambda: ended.append(True)
    for host, text, ending in (
        (0, '{"a": ', ""),
        (1, "a start-up file of this host's Python says {hello}", "\n"),
        (1, '["no object"]', "\n"),
        (1, "{}", "\n"),
        (0, "2}", "\n"),
        (1, '{"last": 1}', "\n"),
        (0, '{"more": 3}', "\n"),
    ):
        lines.line("o", host, text, ending)
    assert (taken, ended) == ([(1, {}), (0, {"a": 2}), (1, {"last": 1})], [True])


def test_an_agent_prints_its_looks(monkeypatch, capsys):
    asked = []

    def ask(*_):
        asked.append(True)
        if len(asked) > 3:
            raise BrokenPipeError  # as when nobody reads its output any more
        return {"stats": {}}

    monkeypatch.setattr(view_socket, "addresses", lambda: [view_socket.ViewAddress("7@a", 0, 1, "n")])
    monkeypatch.setattr(view_socket, "ask", ask)
    assert view_agent.main(["0.001", view_agent.EVERY_JOB]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[each["rank"] for each in line["answers"]] for line in lines] == [[0]] * 3
    assert view_agent.look("8") == []


def test_without_rich_the_error_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "hvdlite.launcher.top_page", raising=False)
    monkeypatch.delattr(launcher, "top_page", raising=False)
    assert cli.main(["top"]) == 2
    assert "pip install 'hvdlite[top]', or use --json" in capsys.readouterr().err


def test_the_page():
    console = pytest.importorskip("rich.console")
    from hvdlite.launcher.top_page import draw

    stalled = {"operation": "allreduce of 'x'", "seconds": 3.0, "stage": "announced, waiting for other ranks"}
    before = {rank: answer(rank) for rank in range(3)}
    after = [
        answer(rank, 11.0, steps=4, waited_for_seconds=[0, 0, 0.3, 0], oldest=stalled if rank else None) for rank in range(2)
    ]
    found = figures_of_job(before, [*after, silent(2)])

    def text(width, rows=None):
        paper = console.Console(file=io.StringIO(), width=width)
        paper.print(draw(found, width, rows))
        return paper.file.getvalue()

    wide, narrow, short = text(160), text(80), text(80, 2)
    for page in (wide, narrow):
        assert "x.py, job 7@a: 4 ranks on 2 hosts" in page
        assert "The others waited most for rank 2: 30.0% of the time each, on average." in page
        assert "Last stall (now): allreduce of 'x' on rank 1, for 3.0 s, announced" in page
        assert "Ranks that were not asked: 2 on b." in page
        assert "hvdlite top -H a,b" in page
        assert page.count("250 ms") == 2
        assert page.count("silent") == 1
        assert max(map(len, page.splitlines())) <= 160
    assert "3.0 s allreduce of 'x'" in wide
    assert "…" not in text(40)
    assert {"rank    step  computes  waits  moves", "2     silent"} <= {line.rstrip() for line in text(40).splitlines()}
    assert "lib.py:2 g > lib.py:3 h" in wide
    assert "1 of the ranks are not shown: they wait most" in short


def test_a_live_page_replaces_the_one_before(monkeypatch):
    console = pytest.importorskip("rich.console")
    from hvdlite.launcher import top_page

    paper = io.StringIO()
    terminal = console.Console(file=paper, width=100, height=7, force_terminal=True)
    monkeypatch.setattr(top_page, "Console", lambda: terminal)
    with top_page.page(live=True) as show:
        for seconds in (11.0, 12.0):
            show(figures_of_job({rank: answer(rank) for rank in range(3)}, [answer(rank, seconds) for rank in range(3)]))
    assert paper.getvalue().count("x.py, job 7@a: 4 ranks on 2 hosts; 2 of the ranks are not shown: they wait most") == 2
    assert paper.getvalue().endswith("\x1b[?1049l")  # the screen is as before


@pytest.mark.parametrize("text", ["0", "-1", "nan", "1e9", "soon"])
def test_an_interval_that_is_none(text):
    with pytest.raises((argparse.ArgumentTypeError, ValueError)):
        top._seconds(text)
