"""What ranks write and how they end: lines with their ranks, and who failed first."""

import io

import pytest

from hvdlite.launcher import rank
from hvdlite.launcher.output import RankExit, RankOutput, first_failure, last_output, parse_marked
from hvdlite.launcher.rank import Segments

# --- output -------------------------------------------------------------------------------------------------------------


def test_lines_are_cut_where_they_end():
    segments = Segments()
    assert segments.feed(b"a\nb") == [("a", "\n")]
    assert segments.feed(b"c\r\n10%\r20%\r") == [("bc", "\n"), ("10%", "\r")]
    assert segments.feed(b"\n\n") == [("20%", "\n"), ("", "\n")]
    assert segments.feed("ü".encode()[:1]) == []
    assert segments.feed("ü".encode()[1:] + b"\n") == [("ü", "\n")]
    assert segments.feed(b"x" * 70000) == [("x" * 70000, "")]
    segments.feed(b"end")
    assert segments.finish() == [("end", "\n")]
    assert segments.finish() == []


def test_marked_lines_are_recognised():
    assert parse_marked(f"{rank.MARK}on12{rank.MARK}hello") == ("o", "\n", 12, "hello")
    assert parse_marked(f"tail of another{rank.MARK}er3{rank.MARK}10%") == ("e", "\r", 3, "10%")
    assert parse_marked("mpirun says") is None


def test_lines_have_their_rank_in_front_and_a_copy_in_files(tmp_path):
    out, err = io.StringIO(), io.StringIO()
    output = RankOutput(12, timestamps=True, folder=str(tmp_path / "logs"), stdout=out, stderr=err, clock=lambda: "noon")
    output.line("o", 3, "hello", "\n")
    output.line("e", 11, "10%", "\r")
    output.line("e", 11, "oops", "\n")
    output.close()
    assert out.getvalue() == "noon [3]<stdout>: hello\n"
    assert err.getvalue() == "noon [11]<stderr>: 10%\rnoon [11]<stderr>: oops\n"
    assert (tmp_path / "logs" / "rank.03" / "stdout").read_text() == "hello\n"
    assert (tmp_path / "logs" / "rank.11" / "stderr").read_bytes() == b"10%\roops\n"
    assert output.tail(11, "e") == ["oops"]


def test_a_character_that_the_terminal_lacks_is_replaced_and_the_copy_has_it(tmp_path):
    out = io.TextIOWrapper(io.BytesIO(), "latin-1")
    output = RankOutput(1, folder=str(tmp_path), stdout=out, stderr=out)
    output.line("o", 0, "\u00e9t\u00e9 \u2713", "\n")
    output.close()
    assert out.buffer.getvalue() == b"[0]<stdout>: \xe9t\xe9 ?\n"
    assert (tmp_path / "rank.0" / "stdout").read_text("utf-8") == "\u00e9t\u00e9 \u2713\n"


def test_a_full_disk_ends_the_output_and_not_the_job(tmp_path):
    err = io.StringIO()
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "rank.0" / "stdout").symlink_to("/dev/full")
    full = open("/dev/full", "w")  # noqa: SIM115 - its end raises an error
    output = RankOutput(1, folder=str(tmp_path), stdout=full, stderr=err)
    for text in ("first", "second"):
        output.line("o", 0, text, "\n")
    output.close()
    with pytest.raises(OSError, match="No space left"):
        full.close()
    why = "cannot be written, and the job continues without it: No space left on device"
    assert err.getvalue() == f"hvdlite run: {tmp_path}/rank.0/stdout {why}\nhvdlite run: stdout {why}\n"
    assert output.tail(0, "o") == ["first", "second"]


TRACE = ["Traceback (most recent call last):", "  File 'x', line 1", "ValueError: bad"]


def test_last_words():
    cause = ["Traceback (most recent call last):", "KeyError: 'k'", ""]
    chain = [*cause, "The above exception was the direct cause of the following exception:", "", *TRACE]
    assert last_output(["noise", *TRACE, "after"], ["out"]) == [*TRACE, "after"]
    assert last_output([*TRACE, "noise", *chain], []) == chain
    assert last_output(["", "killed"], ["out"]) == ["killed"]
    assert last_output([], ["a", "b"]) == ["a", "b"]
    assert len(last_output([str(i) for i in range(90)], [])) == 30


def failure(endings, tails=None, started=None):
    started = started or {ending.rank: (ending.host, ending.pid) for ending in endings}
    found = first_failure(endings, started, lambda rank: (tails or {}).get(rank, []))
    return found and (found.rank, found.status)


def test_the_first_that_failed():
    good, bad, killed = RankExit(0, "h", 10, 0, False), RankExit(1, "h", 11, 3, False), RankExit(2, "h", 12, -9, False)
    told = RankExit(3, "h", 13, -15, True)
    assert failure([good]) is None
    assert failure([good, bad, killed]) == (1, 3)
    assert failure([told, killed, bad]) == (2, 137)
    assert failure([told]) == (3, 143)


LOST = "hvdlite.errors.PeerLostError: rank 1 (host h, pid 11) raised ValueError: bad. Horovod has been shut down"


def test_a_rank_that_reports_anothers_failure_is_not_the_first():
    survivor, raised = RankExit(0, "h", 10, 1, False), RankExit(1, "h", 11, 4, False)
    assert failure([survivor, raised], {0: ["Traceback (most recent call last):", LOST], 1: TRACE}) == (1, 4)
    # what the log of the first one says of the others is no accusation
    log = "2026-11-20 hvdlite ERROR [control rank 1/2] rank 0 (host h, pid 10) ended without telling the other ranks: killed"
    assert failure([survivor, raised], {0: ["Traceback (most recent call last):", LOST], 1: [*TRACE, log]}) == (1, 4)
    # hvdlite's rank 1 may be another of the launcher's: the process id decides
    raised = RankExit(5, "h", 11, 4, False)
    assert failure([survivor, raised], {0: ["Traceback (most recent call last):", LOST]}) == (5, 4)


def test_a_rank_that_was_ended_while_it_told_the_others():
    survivor = RankExit(0, "h", 10, 1, False)
    tails = {0: ["Traceback (most recent call last):", LOST], 1: TRACE}
    assert failure([survivor, RankExit(1, "h", 11, -15, True)], tails) == (1, 1)
    assert failure([survivor], tails, {0: ("h", 10), 1: ("h", 11)}) == (1, 1)  # killed with what watched it


def test_a_rank_that_left_in_good_order_is_not_the_one_that_failed():
    text = "hvdlite.errors.AbortedError: allreduce of 'x': rank 1 (host h, pid 11) has left: its program ended"
    survivor = RankExit(0, "h", 10, 1, False)
    for left in (RankExit(1, "h", 11, 0, False), RankExit(1, "h", 11, -15, True)):
        assert failure([survivor, left], {0: ["Traceback (most recent call last):", text]}) == (0, 1)
    assert failure([survivor, RankExit(1, "h", 11, 5, False)], {0: ["Traceback (most recent call last):", text]}) == (1, 5)
