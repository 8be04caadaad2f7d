"""Reads docs/api/examples: for each page of the API reference a file with one example for each public name.

An example is a function with the name of what it shows. `Handle_poll` shows the method `poll` of the class `Handle`. The other
statements of the file are the beginning that its examples have in common. If an example has a docstring, it cannot run in an
ordinary job of two ranks, and the docstring says why.
"""

import ast
import functools
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

FOLDER = Path(__file__).parent / "api" / "examples"


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        page: the name of its page, such as "hvdlite".
        name: the public name that it shows.
        note: why it cannot run in an ordinary job; "" if it can.
        code: its statements.
    """

    page: str
    name: str
    note: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}.{self.name}"


def _is_example(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")


@functools.cache
def examples(page: str) -> dict[str, Example]:
    """The examples of a page, by name; none if the page has no file of examples."""
    file = FOLDER / f"{page}.py"
    text = file.read_text() if file.exists() else ""
    lines, found = text.splitlines(), {}
    for node in ast.parse(text).body:
        if _is_example(node):
            note = ast.get_docstring(node) or ""
            first, last = node.body[1 if note else 0], node.body[-1]
            code = textwrap.dedent("\n".join(lines[first.lineno - 1 : last.end_lineno]))
            found[node.name] = Example(page, node.name, note, code)
    return found


def beginning(page: str) -> str:
    """The statements that the examples of a page have in common."""
    text = (FOLDER / f"{page}.py").read_text()
    lines = text.splitlines()
    body = ast.parse(text).body
    kept = [node for node in body[1:] if not _is_example(node)]  # without the docstring
    parts, end = [], kept[0].lineno - 1
    for node in kept:
        gap = [line for line in lines[end : node.lineno - 1] if not line.strip()] if parts else []
        parts += [*gap, *lines[node.lineno - 1 : node.end_lineno]]
        end = node.end_lineno or 0
    return "\n".join(parts)
