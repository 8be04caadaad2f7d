"""The pages of the documentation, and the blocks of Python in them.

A block that begins with ```` ```python ```` is a whole program: the files named test_pages.py and test_*_pages.py run it on two
ranks. A block that begins with ```` ```python fragment ```` is incomplete, or needs several hosts, a GPU or another library,
and is only compiled. The same files run the examples of public names (docs/name_examples.py).
"""

import ast
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from support.modules import module_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md"), *DOCS.glob("api/*.md")])
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")


name_examples = module_of(DOCS / "name_examples.py")


def name_of(page: Path) -> str:
    """A page's name: its path in docs/, or in the repository if it is not there."""
    return str(page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT))


@dataclass(frozen=True)
class Block:
    """A block of Python on a page.

    Attributes:
        page: the page's name.
        line: the number of its first line, counted from 1.
        words: the words after the language in the line that opens the block.
        code: the text of the block.
    """

    page: str
    line: int
    words: tuple[str, ...]
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @functools.cached_property
    def frameworks(self) -> frozenset[str]:
        """The frameworks that the block imports, directly or as doors of hvdlite."""
        names: set[str] = set()
        for node in ast.walk(ast.parse(self.code)):
            if isinstance(node, ast.Import):
                names |= {word for alias in node.names for word in alias.name.split(".")}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {*node.module.split("."), *(alias.name for alias in node.names)}
        return frozenset(names & set(FRAMEWORKS))

    def run(self) -> None:
        """Runs the block as a program."""
        module = ModuleType("page")
        exec(compile(self.code, str(self), "exec"), vars(module))


def python_blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(name_of(page), text.count("\n", 0, found.start()) + 2, tuple(found[1].split()), found[2])
        for found in re.finditer(r"^```python([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def text_between(page: Path, marks: tuple[str, str]) -> str:
    """The text between these marks of a page."""
    return page.read_text().partition(marks[0])[2].partition(marks[1])[0].strip()


def write_between(page: Path, marks: tuple[str, str], text: str) -> None:
    """Replaces the text between these marks of a page."""
    before, begin, rest = page.read_text().partition(marks[0])
    _, end, after = rest.partition(marks[1])
    assert begin, f"{page} lacks {marks[0]}"
    assert end, f"{page} lacks {marks[1]} after {marks[0]}"
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def programs(*frameworks: str) -> list[Block]:
    """All blocks that are whole programs and import one or more of these frameworks and no other; without arguments, all that
    import no framework.
    """
    found = [block for page in PAGES for block in python_blocks(page) if "fragment" not in block.words]
    return [block for block in found if (block.frameworks <= set(frameworks)) and bool(block.frameworks) == bool(frameworks)]


def examples(*pages: str) -> list:
    """The examples of public names on these pages of the reference that run in an ordinary job of two ranks."""
    return [example for page in pages for example in name_examples.examples(page).values() if not example.note]


def function_of(example) -> Callable[[], None]:
    """The function of an example of a public name."""
    return getattr(_module_of(example.page), example.name)


@functools.cache
def _module_of(page: str) -> ModuleType:
    return module_of(name_examples.FOLDER / f"{page}.py")
