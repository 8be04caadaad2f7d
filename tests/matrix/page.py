"""The table of results in a page of docs/, between two marks: new rows replace older ones of their name, and the rest stays."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ["BEGIN", "END", "replace_rows"]

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def replace_rows(page: Path, head: Sequence[str], rows: Mapping[str, str], order: Iterable[str]) -> None:
    """Writes the table again.

    Args:
        page: of docs/.
        head: the names of the columns, the first of which holds the rows' names.
        rows: the new rows by name, without it.
        order: the names of all rows that may be there.
    """
    before, _, rest = page.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    lines = {match[1]: line for line in table.splitlines() if (match := re.match(r"\| `([^`]+)` \|", line))}
    lines.update({name: f"| `{name}` | {row} |" for name, row in rows.items()})
    top = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    page.write_text("\n".join([before + BEGIN, *top, *(lines[name] for name in order if name in lines), END]) + after)
