"""The page of ``hvdlite top``, drawn with rich."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hvdlite.launcher.figures import JobFigures, RankFigures

_UNKNOWN = "-"
_BAR = 20  # the length of a bar, in characters
_LAST_CALLS = 2  # the number of calls that are shown of a Python stack
_WIDE = 120  # characters: a page of this width has all columns
_NARROW = 70  # a page narrower than this has fewer still
_MUCH = 0.05  # the row of a rank is marked if the others wait for it for a larger part of the time


@contextlib.contextmanager
def page(live: bool) -> Iterator[Callable[[JobFigures], None]]:
    """A function that shows the figures of a look: in place of the previous ones if `live`, otherwise below them."""
    console = Console()
    if not live:
        yield lambda figures: console.print(draw(figures, console.width))
        return
    with Live(Text("looking ..."), console=console, auto_refresh=False, screen=True) as screen:
        # The other lines of the page are the head, the names of the columns, and at most four lines below the table.
        yield lambda figures: screen.update(draw(figures, console.width, max(1, console.height - 6)), refresh=True)


def draw(figures: JobFigures, width: int, rows: int | None = None) -> RenderableType:
    """The page that shows one look.

    Args:
        figures: the figures of the look.
        width: the width of the page, in characters. A page narrower than 120 has fewer columns, one
            narrower than 70 still fewer.
        rows: the number of ranks that the page has room for; None for all. If there are more ranks, the page shows first the
            rank for which the others wait, then ranks that do not answer, then the ranks that wait least.
    """
    hosts = {each.host for each in figures.ranks} | set(figures.not_asked)
    head = (
        f"{figures.program}, job {figures.job}: {figures.size} rank{'s' if figures.size > 1 else ''} on "
        f"{len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    )
    shown = list(figures.ranks)
    if rows is not None and len(shown) > rows:
        shown = sorted(shown, key=lambda each: _urgency(figures, each))[:rows]
        head += f"; {len(figures.ranks) - rows} of the ranks are not shown: they wait most"
    lines: list[RenderableType] = [Text(head, style="bold"), _table(figures, shown, width)]
    lines += [Text(_waited_for(figures)), Text(_last_stall(figures))]
    if figures.not_asked:
        ranks = ", ".join(f"{count} on {host}" for host, count in figures.not_asked.items())
        lines.append(Text(f"Ranks that were not asked: {ranks}. This asks them: hvdlite top -H {','.join(sorted(hosts))}"))
    return Group(*lines)


def _urgency(figures: JobFigures, each: RankFigures) -> tuple[bool, bool, float]:
    return each.rank != figures.waited_for, each.state == "answers", each.waiting or 0.0


def _table(figures: JobFigures, ranks: Sequence[RankFigures], width: int) -> Table:
    wide, narrow = width >= _WIDE, width < _NARROW
    table = Table(box=None, pad_edge=False, header_style="dim", expand=wide)
    for name in ("rank", *(() if narrow else ("host",)), *(("pid",) if wide else ())):
        table.add_column(name, no_wrap=True)
    for name in ("step", "computes", "waits", "moves", *(() if narrow else ("bandwidth", "memory"))):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("computes, waits, moves", no_wrap=True)
        table.add_column("oldest open operation, or where the program is", overflow="ellipsis", no_wrap=True, ratio=1)
    for each in ranks:
        style = "reverse" if each.rank == figures.waited_for and (figures.waited_for_share or 0) > _MUCH else ""
        table.add_row(*_row(each, wide, narrow), style=style)
    return table


def _row(each: RankFigures, wide: bool, narrow: bool) -> list[RenderableType]:
    start = [str(each.rank), *(() if narrow else (each.host,)), *((str(each.pid),) if wide else ())]
    if each.state != "answers" and not wide:
        return [*start, Text(each.state)]
    shares = [_percent(share) for share in (each.computing, each.waiting, each.communicating)]
    start += [_time(each.step_seconds), *shares]
    if narrow:
        return [*start]
    return [
        *start,
        _UNKNOWN if each.bytes_per_second is None else f"{each.bytes_per_second / 1e9:.3g} GB/s",
        _UNKNOWN if each.memory_bytes is None else f"{each.memory_bytes / (1 << 30):.2f} GiB",
        *((_bar(each), Text(_now(each) if each.state == "answers" else each.state)) if wide else ()),
    ]


def _now(each: RankFigures) -> str:
    if each.oldest is not None and each.oldest["seconds"] >= 0.1:
        return f"{each.oldest['seconds']:.1f} s {each.oldest['operation']}: {each.oldest['stage']}"
    return " > ".join((each.where or _UNKNOWN).split(" > ")[-_LAST_CALLS:])


def _bar(each: RankFigures) -> Text:
    if each.computing is None or each.waiting is None or each.communicating is None:
        return Text(_UNKNOWN)
    moves, waits = round(_BAR * each.communicating), round(_BAR * each.waiting)
    bar = Text("█" * max(0, _BAR - moves - waits), style="blue")
    return bar.append("█" * waits, style="yellow").append("█" * moves, style="red")


def _time(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{share:.0%}"


def _waited_for(figures: JobFigures) -> str:
    if figures.waited_for is None:
        return "No rank waited for another one."
    return f"The others waited most for rank {figures.waited_for}: {figures.waited_for_share:.1%} of the time each, on average."


def _last_stall(figures: JobFigures) -> str:
    stall = figures.last_stall
    if stall is None:
        return "No operation was open for more than a second in any look."
    when = "now" if not stall["looks_ago"] else f"{stall['looks_ago']} looks ago"
    return f"Last stall ({when}): {stall['operation']} on rank {stall['rank']}, for {stall['seconds']:.1f} s, {stall['stage']}."
