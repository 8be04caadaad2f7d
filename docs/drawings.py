"""The drawings of docs/concepts.md: this file is their source, and `python docs/drawings.py` writes docs/drawings/*.svg.

A drawing is 420 units wide, so that its text can be read on a phone. `tests/unit/test_site.py` compares the files with what
this program makes.
"""

import sys
from collections.abc import Callable
from html import escape
from pathlib import Path

FOLDER = Path(__file__).with_name("drawings")
WIDTH = 420
INK, GREY, PALE, RED, GREEN = "#1f2933", "#7b8794", "#f1f4f8", "#c62828", "#2e7d32"
RANKS = ("#cfe3fb", "#fde1bd", "#d5efd3", "#ead6f2")  # the grounds of ranks 0 to 3
DONE = "#ffffff"


class Drawing:
    """Boxes, texts and arrows, from the top left corner. Sizes are in units of the drawing."""

    def __init__(self, title: str, height: int) -> None:
        self.title, self.height = title, height
        self.parts: list[str] = []

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", size: float = 12.5, fill: str = INK, bold: bool = False
    ) -> None:
        """One line of text; y is its base line."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{weight}>{escape(text)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, text: str = "", fill: str = PALE, line: str = GREY) -> None:
        """A rectangle with a text in its middle; lines of text are separated by newlines."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{line}"/>'
        )
        lines = text.split("\n") if text else []
        for number, part in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 4.5 + 15 * (number - (len(lines) - 1) / 2), part, "middle")

    def arrow(self, *points: tuple[float, float], line: str = INK) -> None:
        """A line through the points, with a head at the last one."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{line}" stroke-width="1.5" marker-end="url(#head)"/>')

    def line(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """A thin dashed line."""
        (x, y), (to_x, to_y) = begin, end
        self.parts.append(f'<path d="M{x:g},{y:g} L{to_x:g},{to_y:g}" stroke="{GREY}" stroke-dasharray="4 3"/>')

    def cross(self, x: float, y: float) -> None:
        """A red cross: a process that has ended."""
        self.parts.append(f'<path d="M{x - 7:g},{y - 7:g} l14,14 m0,-14 l-14,14" stroke="{RED}" stroke-width="3"/>')

    def svg(self) -> str:
        """The text of the file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img" font-family="system-ui, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def overlap() -> Drawing:
    """Gradients are averaged while backward goes on."""
    drawing = Drawing("Gradients are averaged while backward computes the next ones", 132)
    for number, (rank, late) in enumerate(((0, 0), (1, 14))):
        y = 24 + 74 * number
        drawing.text(8, y + 16, f"rank {rank}", bold=True)
        x = 62 + late
        for bucket in (3, 2, 1):
            drawing.box(x, y, 84, 24, f"backward {bucket}", RANKS[rank])
            x += 84
        drawing.box(372, y, 42, 24, "step", RANKS[rank])
    for number, bucket in enumerate((3, 2, 1)):
        x = 160 + 84 * number
        drawing.box(x, 57, 56, 32, f"mean {bucket}", DONE, GREEN)
        drawing.arrow((x - 4, 49), (x + 8, 56))
        drawing.arrow((x + 4, 97), (x + 12, 90))
    return drawing


def ring() -> Drawing:
    """Chunks travel around the ring."""
    ranks = 4
    drawing = Drawing("An allreduce in a ring of four ranks", 512)
    panels: list[tuple[str, Callable[[int, int], tuple[str, bool]]]] = [
        ("at the start: each rank has its own values", lambda rank, chunk: (f"{rank}", False)),
        ("after 1 step: sums of two ranks", lambda rank, chunk: _after(rank, chunk, 1)),
        ("after 3 steps: each rank has one whole sum", lambda rank, chunk: _after(rank, chunk, ranks - 1)),
        ("after 3 more steps: the whole sums have gone around", lambda rank, chunk: ("sum", True)),
    ]
    for number, (title, cell) in enumerate(panels):
        top = 4 + 128 * number
        drawing.text(8, top + 12, title, bold=True)
        for rank in range(ranks):
            y = top + 20 + 24 * rank
            drawing.text(8, y + 16, f"rank {rank}")
            for chunk in range(ranks):
                text, whole = cell(rank, chunk)
                drawing.box(62 + 72 * chunk, y, 70, 22, text, DONE if whole else RANKS[rank], GREEN if whole else GREY)
        if number < len(panels) - 1:
            for rank in range(ranks - 1):
                drawing.arrow((356, top + 33 + 24 * rank), (372, top + 40 + 24 * rank), (358, top + 51 + 24 * rank))
            drawing.arrow((356, top + 107), (398, top + 107), (398, top + 28), (358, top + 28))
    return drawing


def _after(rank: int, chunk: int, steps: int) -> tuple[str, bool]:
    """A rank's chunk after this many steps of the ring: whose values are in it, and whether these are all."""
    # A chunk's sum begins at the rank after its owner, and ends at the owner: csrc/collectives/allreduce_ring.cc.
    for step in range(1, steps + 1):
        if (chunk + 1 + step) % 4 == rank:
            members = [(chunk + 1 + place) % 4 for place in range(step + 1)]
            return ("sum", True) if len(members) == 4 else ("+".join(map(str, members)), False)
    return f"{rank}", False


def tiles() -> Drawing:
    """An allreduce through shared memory."""
    drawing = Drawing("An allreduce of two ranks in tiles through shared memory", 318)
    for rank, y, label in ((0, 26, 18), (1, 262, 312)):
        drawing.text(8, label, f"rank {rank}'s tensor, in its own memory", bold=True)
        for tile in range(4):
            drawing.box(8 + 101 * tile, y, 99, 34, "" if tile == 1 else f"tile {tile}", RANKS[rank] if tile == 1 else PALE)
        drawing.text(134, y + 22, "slice 0", "middle", size=11)
        drawing.text(183, y + 22, "slice 1", "middle", size=11)
        drawing.line((158.5, y), (158.5, y + 34))
    drawing.box(8, 96, 404, 130, fill="#fbfcfd")
    drawing.text(404, 218, "memory that both ranks map", "end", size=11.5, fill=GREY)
    drawing.box(118, 108, 110, 34, "rank 0's buffer", RANKS[0])
    drawing.box(288, 108, 110, 34, "rank 1's result", DONE, GREEN)
    drawing.box(16, 168, 110, 34, "rank 0's result", DONE, GREEN)
    drawing.box(166, 168, 110, 34, "rank 1's buffer", RANKS[1])
    drawing.arrow((178, 60), (178, 106))
    drawing.text(184, 86, "1", bold=True)
    drawing.arrow((228, 125), (286, 125))
    drawing.text(252, 119, "2", bold=True)
    drawing.arrow((330, 106), (200, 62))
    drawing.text(284, 84, "3", bold=True)
    drawing.arrow((145, 260), (190, 204))
    drawing.text(176, 238, "1", bold=True)
    drawing.arrow((164, 185), (128, 185))
    drawing.text(142, 179, "2", bold=True)
    drawing.arrow((60, 204), (170, 260))
    drawing.text(84, 238, "3", bold=True)
    return drawing


def agreement() -> Drawing:
    """How ranks agree in the ledger."""
    drawing = Drawing("How two ranks agree on the order of operations in the ledger", 356)
    drawing.text(60, 18, "rank 0", "middle", bold=True)
    drawing.text(210, 18, "the ledger, in shared memory", "middle", bold=True)
    drawing.text(360, 18, "rank 1", "middle", bold=True)
    rows: list[tuple[int, str, str]] = [
        (0, "announce\ngradients 3", "gradients 3: rank 0"),
        (1, "announce\nloss", "gradients 3: rank 0\nloss: rank 1"),
        (1, "announce\ngradients 3", "loss: rank 1\nlog: gradients 3"),
        (0, "announce\nloss", "log: gradients 3, loss"),
    ]
    for number, (rank, say, state) in enumerate(rows):
        y = 32 + 62 * number
        x = 8 if rank == 0 else 308
        drawing.box(x, y, 104, 44, say, RANKS[rank])
        drawing.box(136, y, 148, 44, state, DONE, GREEN if "log" in state else GREY)
        drawing.arrow(*(((112, y + 22), (134, y + 22)) if rank == 0 else ((308, y + 22), (286, y + 22))))
    y = 290
    for rank, x in ((0, 8), (1, 308)):
        drawing.box(x, y, 104, 58, "read the log\n1 gradients 3\n2 loss", RANKS[rank])
    drawing.arrow((170, 264), (170, 318), (114, 318))
    drawing.arrow((250, 264), (250, 318), (306, 318))
    return drawing


def hierarchical() -> Drawing:
    """An allreduce on two hosts."""
    drawing = Drawing("An allreduce of two hosts with two ranks each", 250)
    for host, x in ((0, 8), (1, 222)):
        drawing.box(x, 28, 190, 214, fill="#fbfcfd")
        drawing.text(x + 8, 22, f"host {host}", bold=True)
        for place in (0, 1):
            rank = 2 * host + place
            drawing.box(x + 10 + 90 * place, 40, 80, 40, f"rank {rank}", RANKS[rank])
            drawing.box(x + 10 + 90 * place, 108, 80, 34, f"slice {place}:\n{2 * host} + {2 * host + 1}", PALE)
            drawing.box(x + 10 + 90 * place, 190, 80, 40, "whole\nsum", DONE, GREEN)
            for other in (0, 1):
                drawing.arrow((x + 50 + 90 * place, 80), (x + 46 + 90 * other, 107), line=GREY)
                drawing.arrow((x + 50 + 90 * place, 168), (x + 46 + 90 * other, 189), line=GREY)
    for place, y in ((0, 154), (1, 164)):
        x = 58 + 90 * place
        drawing.arrow((x, 142), (x, y), (x + 210, y), (x + 210, 143))
        drawing.arrow((x + 216, 142), (x + 216, y), (x + 6, y), (x + 6, 143))
    for number, y in (("1", 98), ("2", 149), ("3", 184)):
        drawing.text(206, y, number, bold=True)
    return drawing


def elastic() -> Drawing:
    """A rank dies in a step."""
    drawing = Drawing("A rank dies in a step, and the others go on", 222)
    for rank in range(4):
        y = 30 + 50 * rank
        drawing.text(8, y + 20, f"rank {rank}", bold=True)
        drawing.box(56, y, 74, 30, "step 7", RANKS[rank])
        if rank == 2:
            drawing.box(134, y, 40, 30, "step", RANKS[rank])
            drawing.cross(182, y + 15)
            drawing.text(198, y + 20, "killed", fill=RED)
            continue
        drawing.box(134, y, 62, 30, "step 8", RANKS[rank], RED)
        drawing.box(200, y, 112, 30, "", DONE, GREY)
        drawing.text(256, y + 20, "who lives?", "middle")
        drawing.box(316, y, 96, 30, f"step 8, rank {rank - (rank > 2)}", RANKS[rank], GREEN)
    drawing.text(98, 18, "4 ranks", "middle", fill=GREY)
    drawing.text(364, 18, "3 ranks", "middle", fill=GREY)
    drawing.text(256, 18, "0.2 s", "middle", fill=GREY)
    return drawing


DRAWINGS = {each.__name__: each for each in (overlap, ring, tiles, agreement, hierarchical, elastic)}


def main() -> int:
    """Writes all drawings."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg())
    return 0


if __name__ == "__main__":
    sys.exit(main())
