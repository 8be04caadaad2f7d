"""What is made of traces: one clock for all hosts, the analysis, the page. Traces are made up here, with known answers."""

import bisect
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from hvdlite.errors import InvalidArgumentError
from hvdlite.timeline import __main__ as program
from hvdlite.timeline import files
from hvdlite.timeline.advice import advice
from hvdlite.timeline.analysis import _WaitingRanks, analyse, common, length_within, union
from hvdlite.timeline.report import page
from hvdlite.timeline.tails import find_tail

STEP = 10_000.0  # microseconds
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def write_trace(
    path, rank, size, skew, host, late=0.0, steps=20, wait=2_000.0, hidden=0.0, wall_error=0.0, slow=None, longer=None
):
    """A rank's file.

    In each step, `late` after its begin, it asks for two tensors of one FusedOp, whose data moves for 1 ms; it waits for
    `wait`, beginning `hidden` after the data began to move.

    slow: by step, how much later this rank asks for its tensors, and where its program is meanwhile.
    longer: by step, how much later data moves and how much longer the step is. A rank that is not as late as that waits for it.
    """
    slow, longer = slow or {}, longer or {}
    start = 5_000_000.0 + skew
    head = {"rank": rank, "size": size, "host": host, "boot_id": host, "clock_to_epoch_us": 1e15 - skew + wall_error}
    events = [
        {"name": "hvdlite", "ph": "M", "pid": rank, "args": head},
        *(
            {"name": "thread_name", "ph": "M", "pid": rank, "tid": 1000 + lane, "args": {"name": f"grad{lane}"}}
            for lane in range(2)
        ),
    ]

    def span(name, tid, begin, end, **args):
        event = {"name": name, "ph": "X", "pid": rank, "tid": tid, "ts": start + begin, "dur": end - begin, "args": args}
        events.append(event)

    stacks = []
    at = 0.0
    for step in range(steps):
        extra, calls = slow.get(step, (0.0, "a.py:1 main > a.py:9 forward"))
        delay = longer.get(step, 0.0)
        asks, moves = at + late + extra, at + 3_000.0 + delay  # all have asked when data moves
        for lane in range(2):
            number = 2 * step + lane + 1
            span("NEGOTIATE_ALLREDUCE", 1000 + lane, asks, moves, operation=number)
            span("ALLREDUCE", 1000 + lane, moves, moves + 1000, operation=number, bytes=4096, fused_op=step + 1)
        if delay > extra + late:
            span("WAIT", 1, asks, moves, operation=2 * step + 1)
        span("WAIT", 1, moves + hidden, moves + hidden + wait, operation=2 * step + 1)
        stacks.append({**events[-1], "name": files.STACK, "ts": start + at, "dur": STEP + delay, "args": {"calls": calls}})
        at += STEP + delay
    path.write_text(json.dumps(events))
    files.stacks_file(path).write_text(json.dumps(stacks))


def job(tmp_path, ranks, **common_options):
    for rank, options in enumerate(ranks):
        name = "t.json" if rank == 0 else f"t.rank{rank}.json"
        write_trace(tmp_path / name, rank, len(ranks), **{"skew": 0.0, "host": "a", **common_options, **options})
    return [files.read(path) for path in files.files_of_job(tmp_path / "t.json")]


def test_spans_of_time():
    assert union([(5, 7), (1, 3), (2, 4), (7, 8)]) == [(1, 4), (5, 8)]
    assert common([(1, 4), (5, 8)], [(3, 6), (7, 9)]) == [(3, 4), (5, 6), (7, 8)]
    assert length_within([(1, 4), (5, 8)], 2, 6) == 3
    assert length_within([], 0, 1) == 0
    generator = random.Random(3)
    for _ in range(200):
        sets = [union((begin, begin + generator.randint(1, 5)) for begin in generator.sample(range(50), 8)) for _ in range(2)]
        cells = [{cell for begin, end in spans for cell in range(begin, end)} for spans in sets]
        assert sum(end - begin for begin, end in common(*sets)) == len(cells[0] & cells[1])
        begin, end = sorted(generator.sample(range(60), 2))
        assert length_within(sets[0], begin, end) == len(cells[0] & set(range(begin, end)))


def test_how_long_ranks_wait_at_a_time():
    generator = random.Random(4)
    waits = [union((begin, begin + generator.randint(1, 9)) for begin in generator.sample(range(60), 6)) for _ in range(4)]
    waiting = _WaitingRanks(waits)
    for _ in range(200):
        begin, end = sorted(generator.sample(range(-5, 80), 2))
        assert waiting.time_between(begin, end) == sum(length_within(spans, begin, end) for spans in waits)
    assert _WaitingRanks([]).time_between(0, 1) == 0


@pytest.mark.parametrize("skew", [-3e9, 2_500.0, 7e8])
def test_clocks_of_hosts_are_aligned_within_an_operation(tmp_path, skew):
    traces = job(tmp_path, [{}, {}, {"skew": skew, "host": "b", "wall_error": 1_500.0}])
    shifts = files.align(traces)
    assert shifts[:2] == [0.0, 0.0]
    assert shifts[2] == pytest.approx(-skew, abs=1_000.0)  # the operations take a millisecond
    merged = files.merge(traces)
    begins = {event["pid"]: event["ts"] for event in reversed(merged) if event["name"] == "ALLREDUCE"}
    assert min(event["ts"] for event in merged if "ts" in event) == 0.0
    assert begins[2] == pytest.approx(begins[0], abs=1_000.0)


def test_where_a_step_goes(tmp_path):
    found = analyse(job(tmp_path, [{}, {"wait": 500.0}]))
    assert len(found.boundaries) == 20
    first, second = found.ranks[0].typical, found.ranks[1].typical
    assert (first.step, first.wait, first.communicate, first.hidden) == pytest.approx((STEP, 2000, 1000, 0))
    assert (second.wait, second.hidden) == pytest.approx((500, 500))
    assert (found.ranks[0].overlap, found.ranks[1].overlap) == pytest.approx((0.0, 0.5))
    assert (found.operations, found.num_bytes) == (2, 8192)
    assert found.fused == [(2, 8192)] * 20


def test_who_is_late(tmp_path):
    found = analyse(job(tmp_path, [{}, {"late": 1500.0, "skew": 4e8, "host": "b"}, {"late": 300.0}]))
    assert set(found.late) == {1}
    assert found.late[1].times == 40
    assert found.late[1].lateness == pytest.approx(40 * 1200, rel=0.9)
    assert not any(found.late[1].lost)  # the others do other things until data moves


def test_a_rank_that_is_late_in_every_step(tmp_path):
    every = dict.fromkeys(range(20), 3_000.0)
    (text, *_) = advice(analyse(job(tmp_path, [{}, {"late": 3_000.0, "host": "b"}, {"late": 300.0}], longer=every)))
    assert text.startswith(
        "Rank 1 (host b) is the last to arrive in most steps. The others wait for it for 21% of the time, which is 100% of all "
        "waiting for ranks, most often at 'grad0'. While they waited, its program was at a.py:1 main > a.py:9 forward (100% of "
        "the samples). Look for differences of that rank"
    )


SLEEPS = "a.py:7 next_batch > b.py:3 read"


def tailed(tmp_path, slow, steps=60, **options):
    """The advice for two ranks, of which rank 1 asks so much later for its tensors in some steps; these are longer by that."""
    ranks = [{}, {"slow": {step: (time, SLEEPS) for step, time in slow.items()}, "host": "b"}]
    return advice(analyse(job(tmp_path, ranks, steps=steps, longer=slow, **options)))


def test_a_rank_that_is_late_in_few_steps(tmp_path):
    """In the median of the steps nobody waits."""
    lines = tailed(tmp_path, dict.fromkeys(range(4, 60, 10), 20_000.0), wait=0.0)
    assert lines[0].startswith(
        "Rank 1 (host b) made the others wait for 17% of the time (120 ms of 710 ms) in 6 of 59 steps, every 10th step: 20 ms "
        f"each time, most often at 'grad0'. While they waited, its program was at {SLEEPS} (100% of the samples). "
    )
    assert not any("in most steps" in line for line in lines)


def test_slow_steps_among_others_that_have_no_rhythm(tmp_path):
    slow = dict.fromkeys(range(4, 60, 10), 20_000.0) | dict.fromkeys((3, 7, 25, 31, 58), 7_000.0)
    assert "in 6 of 59 steps, every 10th step: 20 ms each" in tailed(tmp_path, slow)[0]


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((5,), "in step 5: "),
        ((5, 9, 30), "in 3 of 59 steps, at irregular intervals: "),
        ((2, 12, 22, 41, 50), "in 5 of 59 steps, at irregular intervals: "),
        (range(1, 60, 3), "in 20 of 59 steps, every 3rd step: "),
    ],
)
def test_how_slow_steps_come_again(tmp_path, steps, said):
    assert said in tailed(tmp_path, dict.fromkeys(steps, 60_000.0))[0]


def test_slow_steps_that_come_again_by_the_clock():
    """Steps take unequal time, and every 100 ms one is slow."""
    generator = random.Random(5)
    begins = [0.0, *itertools.accumulate(generator.uniform(2_000, 20_000) for _ in range(100))]
    slow = {bisect.bisect(begins, beat) - 1 for beat in range(50_000, int(begins[-1]), 100_000)}
    tail = find_tail([9_000.0 if step in slow else 0.0 for step in range(100)], 11_000.0, begins)
    assert tail.steps == tuple(sorted(slow))
    assert re.fullmatch(r"every 0\.(1|09\d+|10\d+) s", tail.rhythm)


def test_steps_that_are_slow_on_all_ranks(tmp_path):
    """Nobody is late: all ranks compute longer, in every 20th step."""
    longer = dict.fromkeys(range(10, 100, 20), 40_000.0)
    slow = dict.fromkeys(longer, (40_000.0, "c.py:5 save"))
    lines = advice(analyse(job(tmp_path, [{"slow": slow}, {"slow": slow}], steps=100, longer=longer)))
    assert lines[0].startswith(
        "All ranks together are slow in 5 of 99 steps, every 20th step: each slow step takes 40 ms longer, together 17% of the "
        "time."
    )
    assert "Most of it is computation. In these steps the program of rank 0 was at c.py:5 save (80% of" in lines[0]


def test_the_first_steps_are_told_apart(tmp_path):
    lines = tailed(tmp_path, {0: 900_000.0, 1: 90_000.0}, wait=0.0)
    assert lines[-1].startswith("The first 2 steps took 1.01 s, a later step takes 10 ms (the median).")
    assert not any("made the others wait" in line for line in lines)


def test_a_late_rank_among_several(tmp_path):
    """Ranks 0 and 2 wait for rank 1; rank 3 takes its results by callbacks, and counts as waiting; rank 4 does other things."""
    longer = dict.fromkeys(range(1, 20, 4), 20_000.0)
    slow = {step: (time, SLEEPS) for step, time in longer.items()}
    traces = job(tmp_path, [{}, {"slow": slow}, {}, {}, {}], longer=longer, wait=0.0)
    traces[3].waits.clear()
    del traces[4].waits[1:]
    found = analyse(traces)
    assert found.late[1].lost[5:8] == pytest.approx([20_000 * 3 / 4, 0, 0])
    assert 4 not in found.late or not any(found.late[4].lost)


def test_the_trace_of_one_rank(tmp_path):
    found = analyse(job(tmp_path, [{"slow": {9: (50_000.0, SLEEPS)}}], longer={9: 50_000.0}))
    assert found.late == {}
    assert advice(found)[0].startswith(
        "All ranks together are slow in step 8: each slow step takes 50 ms longer"
    )  # it asks late for the next
    assert f"In these steps the program of rank 0 was at {SLEEPS}" in advice(found)[0]
    assert SLEEPS.replace(">", "&gt;") in page(found)


def test_traces_without_stacks_say_less(tmp_path):
    traces = job(tmp_path, [{}, {"slow": {4: (200_000.0, SLEEPS)}, "host": "b"}], longer={4: 200_000.0})
    for trace in traces:
        trace.stacks.clear()
    assert "most often at 'grad0'. Look for work that this rank does" in advice(analyse(traces))[0]


def test_messages_between_two_ranks_are_matched_with_nothing(tmp_path):
    """Their names say nothing to other ranks: that one rank's come later makes it no late rank."""
    traces = job(tmp_path, [{}, {"late": 1500.0}])
    for trace in traces:
        for operation in trace.operations.values():
            operation.kind = "SEND"
    assert not list(files.matches(traces[0], traces[1], 0.0))


def test_nothing_to_gain(tmp_path):
    assert "Faster communication would gain little" in advice(analyse(job(tmp_path, [{"wait": 100.0}] * 2)))[0]


def test_little_is_hidden(tmp_path):
    lines = advice(analyse(job(tmp_path, [{"wait": 1000.0}] * 2)))
    assert any("Only 0% of the time in which data moves is hidden" in line for line in lines)
    lines = advice(analyse(job(tmp_path, [{"wait": 1000.0, "hidden": 900.0}] * 2)))
    assert not any("is hidden" in line for line in lines)


class Checker(HTMLParser):
    """Every element is closed, nothing comes from elsewhere."""

    EMPTY = frozenset({"meta"})

    def __init__(self):
        super().__init__()
        self.open, self.text, self.boxes = [], [], 0

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        assert not {"src", "href"} & set(values)
        assert tag not in ("script", "link", "iframe", "img")
        if tag == "rect":
            self.boxes += 1
            assert float(values["width"]) > 0
            assert float(values["x"]) >= 0
            assert float(values["y"]) >= 0
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_says_what_was_found(tmp_path):
    found = analyse(job(tmp_path, [{}, {"late": 1500.0, "host": "b<script>"}]))
    checker = Checker()
    checker.feed(page(found))
    assert checker.open == []
    assert checker.boxes > 60
    text = " ".join(checker.text)
    assert "2 ranks on 2 hosts, 19 steps; a step takes 10.00 ms and has 2 operations of 8.0 KiB in all" in text
    assert "1 (b<script>)" in text
    assert "rank 1" in text
    assert "grad0" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt install chromium)")
def test_a_browser_draws_it(tmp_path):
    target = tmp_path / "page.html"
    assert program.main(["report", str(_files(tmp_path)), "-o", str(target)]) == 0
    # What the browser made of it: every bar has a place and a size.
    probe = """<script>addEventListener('load', () => {
      const boxes = [...document.querySelectorAll('rect')].map(rect => rect.getBoundingClientRect());
      const drawn = boxes.filter(box => box.width > 0 && box.height > 0 && box.right < 1200);
      document.title = JSON.stringify([boxes.length, drawn.length, document.body.scrollHeight]);
    });</script>"""
    target.write_text(target.read_text().replace("</body>", probe + "</body>"))
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"),
        target.as_uri(),
    ]
    plain = {**os.environ, "LD_PRELOAD": ""}  # a sanitizer's library
    shown = subprocess.run(command, env=plain, capture_output=True, text=True, timeout=120, check=True).stdout
    boxes, drawn, height = json.loads(re.search(r"<title>(\[.*?\])</title>", shown)[1])
    assert boxes == drawn > 60
    assert height > 800


def _files(tmp_path):
    job(tmp_path, [{}, {"late": 1500.0}])
    return tmp_path / "t.json"


def test_the_program_merges_what_lies_beside_rank_0(tmp_path, capsys):
    target = tmp_path / "merged.json"
    assert program.main(["merge", str(_files(tmp_path)), "-o", str(target)]) == 0
    assert capsys.readouterr().out == f"{target}: traces of 2 ranks\n"
    assert {event["pid"] for event in json.loads(target.read_text())} == {0, 1}


def test_the_report_is_said_in_sentences_too(tmp_path, capsys):
    target = tmp_path / "page.html"
    assert program.main(["report", str(_files(tmp_path)), "-o", str(target)]) == 0
    first, *sentences = capsys.readouterr().out.splitlines()
    assert first == f"{target}: traces of 2 ranks"
    assert sentences == [
        f"- {text}" for text in advice(analyse([files.read(path) for path in files.files_of_job(tmp_path / "t.json")]))
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no timeline at"),
        ("[", "cannot be read as a timeline"),
        ("[]", "does not name its rank"),
        ("[1]", "t.json' is damaged: an event lacks a part (AttributeError: "),
        ('[{"name": "hvdlite", "ph": "M"}]', "t.json' is damaged: an event lacks a part (KeyError: 'args')"),
    ],
)
def test_what_is_no_timeline_is_named(tmp_path, capsys, content, said):
    if content is not None:
        (tmp_path / "t.json").write_text(content)
    assert program.main(["report", str(tmp_path / "t.json")]) == 1
    assert said in capsys.readouterr().err


def test_a_folder_is_no_timeline(capsys):
    assert program.main(["report", "."]) == 1
    assert "'.' cannot be read as a timeline: " in capsys.readouterr().err


def test_a_merged_file_is_not_the_trace_of_a_rank(tmp_path, capsys):
    merged = tmp_path / "merged.json"
    assert program.main(["merge", str(_files(tmp_path)), "-o", str(merged)]) == 0
    assert program.main(["report", str(merged), "-o", str(tmp_path / "page.html")]) == 1
    assert "has the events of several ranks, as `hvdlite timeline merge` writes them" in capsys.readouterr().err


def test_files_that_a_larger_job_has_left_are_refused(tmp_path, capsys):
    write_trace(tmp_path / "t.rank2.json", 2, 3, 0.0, "a")
    assert program.main(["report", str(_files(tmp_path)), "-o", str(tmp_path / "page.html")]) == 1
    assert "the file of rank 2 is of a job of 3 ranks, and that of rank 0 of a job of 2: " in capsys.readouterr().err


def test_the_output_replaces_no_trace(tmp_path, capsys):
    trace = _files(tmp_path)
    before = trace.read_text()
    assert program.main(["merge", str(trace), "-o", str(trace)]) == 1
    assert "would replace a file of the job" in capsys.readouterr().err
    assert trace.read_text() == before


def test_the_page_is_utf8_in_any_locale(tmp_path):
    target = tmp_path / "page.html"
    words = ["-m", "hvdlite.timeline", "report", str(_files(tmp_path)), "-o", str(target)]
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, *words], env={**os.environ, **locale}, check=True)
    assert "µs" in target.read_text(encoding="utf-8")


def test_one_operation_makes_no_step(tmp_path):
    with pytest.raises(InvalidArgumentError, match="there are no steps to compare"):
        analyse(job(tmp_path, [{"steps": 1}]))
