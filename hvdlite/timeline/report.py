"""Makes an HTML page that shows how a job spent the time of its steps."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from statistics import median

from hvdlite._version import __version__
from hvdlite.timeline.advice import advice
from hvdlite.timeline.analysis import Analysis, Share, common, length_within, union
from hvdlite.timeline.files import Span, Trace
from hvdlite.timeline.tails import busiest_calls

_WIDTH = 900
_COMPUTE, _EXPOSED, _IDLE, _HIDDEN = "#4c78a8", "#e45756", "#f2b447", "#54a24b"
_MOST_STEPS = 300  # more bars would be too narrow to see
_MOST_TENSORS = 12
_MOST_SLOW = 10

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 960px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; margin-bottom: 0.2em; } h2 { font-size: 1.15em; margin: 2em 0 0.4em; }
table { border-collapse: collapse; margin: 0.6em 0; } th, td { padding: 0.25em 0.8em; text-align: right; }
th { border-bottom: 1px solid #999; font-weight: 600; } td:first-child, th:first-child { text-align: left; }
td { white-space: nowrap; }
tr:nth-child(even) td { background: #f5f6f8; } .note { color: #666; font-size: 0.9em; }
.key span { display: inline-block; width: 0.9em; height: 0.9em; margin: 0 0.35em 0 1.1em; vertical-align: -0.1em; }
ul.advice li { margin: 0.5em 0; } svg { display: block; margin: 0.5em 0; }
svg text { font: 12px system-ui, sans-serif; fill: #333; }
"""


def page(analysis: Analysis) -> str:
    """The page as HTML. The page loads no scripts, fonts or other files."""
    hosts = {rank.trace.host for rank in analysis.ranks.values()}
    steps = len(analysis.boundaries) - 1
    step = median(rank.typical.step for rank in analysis.ranks.values())
    missing = analysis.first.trace.size - len(analysis.ranks)
    lead = (
        f"{_count(len(analysis.ranks), 'rank')} on {_count(len(hosts), 'host')}, {_count(steps, 'step')}; "
        f"a step takes {_time(step)} and has {analysis.operations:.0f} operations of {_size(analysis.num_bytes)} in all "
        "(medians)."
    )
    if missing > 0:
        lead += f" The files of {_count(missing, 'rank')} of the job are missing."
    parts = [
        f"<h1>How the job spent its time</h1><p>{lead}</p>",
        "<h2>What to change</h2><ul class='advice'>"
        + "".join(f"<li>{escape(text)}</li>" for text in advice(analysis))
        + "</ul>",
        "<h2>A step of each rank</h2>" + _key() + _rank_bars(analysis) + _rank_table(analysis),
        "<h2>Step by step</h2>" + _step_bars(analysis),
        "<h2>The slowest steps</h2>" + _slow_table(analysis),
        "<h2>One step</h2>" + _one_step(analysis),
        "<h2>The last to arrive</h2>" + _last_table(analysis),
        "<h2>Tensor fusion</h2>" + _fusion_table(analysis),
        f"<p class='note'>Made by hvdlite {escape(__version__)}.</p>",
    ]
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>hvdlite timeline</title>"
        f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


# --- numbers as text ------------------------------------------------------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _time(microseconds: float) -> str:
    if microseconds >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.2f} ms"
    return f"{microseconds:.0f} µs"


def _size(num_bytes: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes:.0f} B"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


# --- drawings -------------------------------------------------------------------------------------------------------


def _box(x: float, y: float, width: float, height: float, colour: str, title: str) -> str:
    return (
        f"<rect x='{x:.2f}' y='{y:.1f}' width='{max(width, 0.3):.2f}' height='{height:.1f}' fill='{colour}'>"
        f"<title>{escape(title)}</title></rect>"
    )


def _svg(height: float, content: str, label: str) -> str:
    return f"<svg width='{_WIDTH}' height='{height:.0f}' role='img' aria-label='{escape(label)}'>{content}</svg>"


def _key() -> str:
    entries = (
        (_COMPUTE, "computes"),
        (_EXPOSED, "waits while data moves"),
        (_IDLE, "waits for other ranks"),
        (_HIDDEN, "data moves behind computation"),
    )
    return "<p class='key'>" + "".join(f"<span style='background:{colour}'></span>{text}" for colour, text in entries) + "</p>"


def _parts(share: Share) -> list[tuple[str, str, float]]:
    exposed = min(share.wait, share.communicate - share.hidden)
    return [
        (_COMPUTE, "computes", share.compute),
        (_EXPOSED, "waits while data moves", exposed),
        (_IDLE, "waits for other ranks", share.wait - exposed),
    ]


def _rank_bars(analysis: Analysis) -> str:
    shares = {rank: each.typical for rank, each in analysis.ranks.items()}
    longest = max(share.step for share in shares.values())
    scale = (_WIDTH - 80) / longest
    content = ""
    for row, (rank, share) in enumerate(shares.items()):
        y = row * 26
        content += f"<text x='0' y='{y + 15}'>rank {rank}</text>"
        x = 70.0
        for colour, what, time in _parts(share):
            content += _box(x, y, time * scale, 14, colour, f"rank {rank} {what} for {_time(time)}")
            x += time * scale
        content += _box(70, y + 15, share.hidden * scale, 4, _HIDDEN, f"hidden communication: {_time(share.hidden)}")
    return _svg(26 * len(shares), content, "a typical step of each rank")


def _rank_table(analysis: Analysis) -> str:
    rows = []
    for rank, each in analysis.ranks.items():
        share, overlap, late = each.typical, each.overlap, analysis.late.get(rank)
        rows.append(
            (
                f"{rank} ({each.trace.host})",
                _time(share.step),
                _time(share.compute),
                _time(share.wait),
                _time(share.communicate),
                "-" if overlap is None else f"{overlap:.0%}",
                str(late.times) if late else "0",
                _time(late.lateness) if late else "-",
            )
        )
    head = ("rank (host)", "step", "computes", "waits", "data moves", "hidden part", "last to arrive", "others waited for it")
    return _table(head, rows) + "<p class='note'>Medians of the steps; the last two columns are sums over all operations.</p>"


def _step_bars(analysis: Analysis) -> str:
    shares = analysis.first.shares[-_MOST_STEPS:]
    longest = max(share.step for share in shares)
    height, width = 120.0, (_WIDTH - 70) / len(shares)
    content = f"<text x='0' y='12'>{_time(longest)}</text><text x='0' y='{height:.0f}'>0</text>"
    first = len(analysis.first.shares) - len(shares)
    for index, share in enumerate(shares):
        y = height
        for colour, what, time in _parts(share):
            bar = time / longest * height
            y -= bar
            title = f"step {first + index}: {what} for {_time(time)}"
            content += _box(70 + index * width, y, width * 0.9, bar, colour, title)
    note = f"<p class='note'>Rank {analysis.first.trace.rank}, the last {_count(len(shares), 'step')}.</p>"
    return _svg(height + 4, content, "the time of each step") + note


def _typical_step(analysis: Analysis) -> Span:
    """Begin and end of the step whose length is nearest to the median."""
    steps = list(zip(analysis.boundaries, analysis.boundaries[1:], strict=False))
    middle = median(end - begin for begin, end in steps)
    return min(steps, key=lambda step: abs(step[1] - step[0] - middle))


def _one_step(analysis: Analysis) -> str:
    begin, end = _typical_step(analysis)
    scale = (_WIDTH - 80) / (end - begin)
    content, y = "", 0.0
    for rank in analysis.ranks.values():
        trace, shift = rank.trace, rank.shift
        content += f"<text x='0' y='{y + 12}'>rank {trace.rank}</text>"
        content += _box(70, y, (end - begin) * scale, 12, _COMPUTE, "computes")
        for since, until in _clip(trace.waits, begin - shift, end - shift):
            title = f"waits for {_time(until - since)}"
            content += _box(70 + (since + shift - begin) * scale, y, (until - since) * scale, 12, _IDLE, title)
        for span, title in _moves(trace):
            for since, until in _clip([span], begin - shift, end - shift):
                content += _box(70 + (since + shift - begin) * scale, y + 14, (until - since) * scale, 10, _HIDDEN, title)
        y += 32
    note = f"<p class='note'>{_time(end - begin)}. Upper bars show the program, lower bars the data of FusedOps.</p>"
    return _svg(y, content, "what each rank did in one step") + note


def _clip(spans: Iterable[Span], begin: float, end: float) -> list[Span]:
    return [(max(since, begin), min(until, end)) for since, until in spans if since < end and until > begin]


def _moves(trace: Trace) -> list[tuple[Span, str]]:
    """For each FusedOp the time in which its data moved, and a text with its tensors."""
    groups = defaultdict(list)
    for number, operation in trace.operations.items():
        groups[operation.fused_op or -number].append(operation)
    moves = []
    for group in groups.values():
        span = (min(operation.data[0] for operation in group), max(operation.end for operation in group))
        names = ", ".join(operation.name for operation in group[:3]) + (", ..." if len(group) > 3 else "")
        total = _size(sum(operation.num_bytes for operation in group))
        moves.append(
            (span, f"{group[0].kind} of {_count(len(group), 'tensor')} ({names}), {total}, {_time(span[1] - span[0])}")
        )
    return moves


# --- tables ---------------------------------------------------------------------------------------------------------


def _last_table(analysis: Analysis) -> str:
    if not analysis.late:
        return "<p>The files have no collective of two ranks or more, so ranks cannot be compared.</p>"
    tensors: dict[str, Counter[int]] = defaultdict(Counter)
    for rank, late in analysis.late.items():
        for name, times in late.tensors.items():
            tensors[name][rank] += times
    rows = []
    for name, ranks in sorted(tensors.items(), key=lambda item: -sum(item[1].values()))[:_MOST_TENSORS]:
        rank, times = ranks.most_common(1)[0]
        rows.append((name, f"rank {rank}", f"{times} of {sum(ranks.values())} times"))
    note = "<p class='note'>The rank that was most often the last to ask for the tensor, so that all others had to wait.</p>"
    return _table(("tensor", "most often last", "how often"), rows) + note


def _slow_table(analysis: Analysis) -> str:
    lengths = analysis.lengths
    rows = []
    for step in sorted(range(len(lengths)), key=lambda each: -lengths[each])[:_MOST_SLOW]:
        waited = {rank: late.lost[step] for rank, late in analysis.late.items() if late.lost[step]}
        rank = max(waited, key=lambda each: waited[each], default=analysis.first.trace.rank)
        lost = waited.get(rank, 0.0)
        row = [f"{step}", _time(lengths[step]), f"rank {rank}" if lost else "-", _time(lost) if lost else "-"]
        begin, end = analysis.boundaries[step], analysis.boundaries[step + 1]
        late = analysis.late[rank].spans if lost else [(begin, end)]
        calls = busiest_calls(analysis.ranks[rank], common(late, [(begin, end)]))
        rows.append((*row, f"{calls[0]} ({calls[1]:.0%})" if calls else "-"))
    head = ("step", "took", "others waited for", "on average", "where its program was most of the time")
    note = (
        f"<p class='note'>The longest step is first; times are from the clock of rank {analysis.first.trace.rank}. The last "
        "column shows, from samples of the Python stack, where that rank was while the others waited for it, or else where the "
        "first rank was in the whole step.</p>"
    )
    return _table(head, rows) + note


def _fusion_table(analysis: Analysis) -> str:
    steps = len(analysis.boundaries) - 1
    sizes = [num_bytes for _, num_bytes in analysis.fused]
    tensors = [count for count, _ in analysis.fused]
    begin, end = analysis.boundaries[0], analysis.boundaries[-1]
    moving = union(operation.data for operation in analysis.first.trace.operations.values())
    busy = length_within(moving, begin, end)
    rows = [("FusedOps a step", f"{len(sizes) / steps:.1f}"), ("with the agreement, a step", f"{analysis.unfused / steps:.1f}")]
    if sizes:
        rows += [
            ("tensors of a FusedOp", f"median {median(tensors):.0f}, most {max(tensors)}"),
            ("bytes of a FusedOp", f"median {_size(median(sizes))}, most {_size(max(sizes))}"),
            ("rate while data moves", f"{sum(sizes) / max(busy, 1.0) / 1e3:.2f} GB/s (algbw)"),
        ]
    return (
        _table(("", f"rank {analysis.first.trace.rank}"), rows)
        + "<p class='note'>The data of tiny tensors travel in the messages of the agreement.</p>"
    )
