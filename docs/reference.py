"""A Sphinx extension for the API reference: lists of public names, and a check that the reference has all of them.

    .. public:: hvdlite
       init shutdown rank size

documents these names of a module, each with its example from docs/api/examples,

    .. also:: hvdlite.compression
       Codec

documents names of a module whose other names are not public,

    .. examples::

shows the statements with which the examples of a page begin,

    .. shared:: hvdlite.torch hvdlite

links to what the first module offers unchanged from the second one, and

    .. commands::

shows the help of each subcommand of ``hvdlite``. A public name of a module (in its ``__all__``) that no page
documents, or that is documented and not public, is a warning; `make docs` ends with an error at any warning.
"""

import argparse
import importlib
import inspect
import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import name_examples
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from hvdlite.launcher.cli import make_parser

PAGE = re.compile(r"(?<!`)\bdocs/(\w+)\.md\b")  # a docstring's word for a page
ROOT = Path(__file__).parents[1]
# Pages of the site whose text is a file outside of docs/.
ELSEWHERE = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "tests": "tests/README.md",
    "tutorial": "examples/tutorial.ipynb",
}
PAGE_OF = {**{file: f"{page}.md" for page, file in ELSEWHERE.items()}, "README.md": "index.md"}
LOG = logging.getLogger(__name__)
# Sections of a docstring; an indented block below one of them is no code.
SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Note|Example|Examples|Warning):$")


def _example(docname: str, key: str) -> list[str]:
    """The lines with the example of a name of a page; none if it has no example."""
    example = name_examples.examples(docname.removeprefix("api/")).get(key)
    if example is None:
        return []
    code = [f"   {line}".rstrip() for line in example.code.splitlines()]
    return ["", ".. rubric:: Example", "", example.note, "", ".. code-block:: python", "", *code, ""]


def _entry(module: str, name: str, docname: str) -> list[str]:
    """The lines that document a name of a module."""
    value = getattr(importlib.import_module(module), name)
    if inspect.isclass(value):
        value.__name__ = name  # autodoc would document `Job`, whose own name is ElasticJob, as an alias of that only
        options = [":show-inheritance:"] if issubclass(value, BaseException) else [":members:", ":special-members: __sub__"]
        return [f".. autoclass:: {module}.{name}", *(f"   {option}" for option in options), ""]
    if inspect.isfunction(value):
        return [f".. autofunction:: {module}.{name}", ""]
    head = [f".. py:data:: {name}", f"   :module: {module}"]
    if isinstance(value, int):
        head += [f"   :value: {value}"]
    else:
        text = f"The type ``{value}``." if hasattr(value, "__args__") else inspect.getdoc(type(value)).split("\n")[0]
        head += ["", f"   {text}"]
    return [*head, *(f"   {line}" for line in _example(docname, name)), ""]


class _Rst(SphinxDirective):
    """A directive that stands for generated lines of reStructuredText. Its arguments are a module and names."""

    required_arguments = 1
    optional_arguments = 200

    def parse(self, lines: list[str]) -> list[nodes.Node]:
        """The nodes of these lines."""
        holder = nodes.container()
        holder.document = self.state.document
        self.state.nested_parse(StringList(lines, self.get_source_info()[0]), self.content_offset, holder)
        return holder.children

    def note(self, module: str, names: list[str]) -> None:
        """Remembers, for the check, that a page has these names."""
        self.env.metadata[self.env.docname].setdefault("public", {}).setdefault(module, []).extend(names)


class Public(_Rst):
    """``.. public:: MODULE`` and names."""

    def run(self) -> list[nodes.Node]:
        """Documents each name."""
        module, *names = self.arguments
        self.note(module, names)
        return self.document(module, names)

    def document(self, module: str, names: list[str]) -> list[nodes.Node]:
        """The entries of these names."""
        return self.parse([line for name in names for line in _entry(module, name, self.env.docname)])


class Also(Public):
    """``.. also:: MODULE`` and names."""

    def run(self) -> list[nodes.Node]:
        """Documents each name."""
        return self.document(self.arguments[0], self.arguments[1:])


class Examples(_Rst):
    """``.. examples::``."""

    required_arguments = 0

    def run(self) -> list[nodes.Node]:
        """The statements with which the examples of the page begin."""
        code = name_examples.beginning(self.env.docname.removeprefix("api/"))
        return self.parse([".. code-block:: python", "", *(f"   {line}".rstrip() for line in code.splitlines())])


class Shared(_Rst):
    """``.. shared:: MODULE OTHER``."""

    def run(self) -> list[nodes.Node]:
        """Names what MODULE has unchanged from OTHER."""
        module, other = self.arguments
        here, there = importlib.import_module(module), importlib.import_module(other)
        same = [name for name in sorted(set(here.__all__)) if getattr(there, name, None) is getattr(here, name)]
        self.note(module, same)
        return self.parse([", ".join(f":py:obj:`~{other}.{name}`" for name in same) + "."])


class Commands(SphinxDirective):
    """``.. commands::``."""

    def run(self) -> list[nodes.Node]:
        """A section for each subcommand, with its help."""
        os.environ["COLUMNS"] = "86"  # argparse reads it
        parser = make_parser()
        (choices,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        sections = []
        for name, command in choices.items():
            section = nodes.section(ids=[f"hvdlite-{name}"], names=[f"hvdlite {name}"])
            section += nodes.title("", f"hvdlite {name}")
            section += nodes.literal_block("", command.format_help(), language="none")
            sections.append(section)
        return sections


def _check(_app: Sphinx, env: BuildEnvironment) -> None:
    """Warns about public names that no page has, and about names on a page that are not public."""
    documented: dict[str, set[str]] = {}
    for metadata in env.metadata.values():
        for module, names in metadata.get("public", {}).items():
            documented.setdefault(module, set()).update(names)
    for module, names in documented.items():
        public = {name for name in importlib.import_module(module).__all__ if not _is_module(module, name)} - {"__version__"}
        for name in sorted(public ^ names):
            LOG.warning("%s.%s is %s", module, name, "on no page" if name in public else "on a page, and not public")


def _is_module(module: str, name: str) -> bool:
    return isinstance(getattr(importlib.import_module(module), name), ModuleType)


def skip_callback_steps(_app: Sphinx, _what: str, name: str, _obj: Any, skip: bool, _options: Any) -> bool | None:
    """Leaves out what Keras calls in its callbacks: a user calls none of it."""
    return True if re.match(r"on_(train|epoch)_|set_model$", name.rpartition(".")[2]) else skip or None


def mark_code(_app: Sphinx, what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Makes an indented block of a docstring, after an empty line, a block of code, and names of pages links.

    Of a module's docstring it leaves out what is for readers of the code.
    """
    if what == "module":
        paragraphs = "\n".join(lines).split("\n\n")
        lines[:] = "\n\n".join(each for each in paragraphs if "csrc/" not in each and "ver 400 lines" not in each).split("\n")
    lines[:] = [PAGE.sub(r":doc:`/\1`", line) for line in lines]
    marked: list[str] = []
    in_block = in_section = False
    for place, line in enumerate(lines):
        is_indented, follows_empty = line.startswith("    "), place > 0 and not lines[place - 1].strip()
        if line.strip() and not is_indented:
            in_block, in_section = False, SECTION.match(line) is not None
        elif is_indented and follows_empty and not in_block and not in_section:
            if not marked[-2].endswith("::"):
                marked += [".. code-block:: none" if "mpirun" in line else ".. code-block:: python", ""]
            in_block = True
        marked.append(line)
    lines[:] = marked


def add_example(app: Sphinx, _what: str, name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Adds to a docstring the example that the page has for the name. Of a member of a class the key is ``Class_member``."""
    *_, owner, last = name.split(".")
    lines += _example(app.env.docname, f"{owner}_{last}" if owner[0].isupper() else last)


def text_of(file: Path) -> str:
    """The text of a page; of a notebook its cells, with those of code as blocks."""
    if file.suffix != ".ipynb":
        return file.read_text()
    cells = json.loads(file.read_text())["cells"]
    texts = (("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells)
    return "\n\n".join(f"```ipython\n{text}\n```" if is_code else text for text, is_code in texts) + "\n"


def take_from_elsewhere(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Gives the pages of ELSEWHERE their text, and lets links to such files lead to the pages."""
    here = (ROOT / ELSEWHERE.get(docname, f"docs/{docname}.md")).parent
    page = ROOT / "docs" / docname

    def rebased(link: re.Match[str]) -> str:
        path, _, anchor = link[1].partition("#")
        if "://" in path or not path:
            return link[0]
        file = os.path.relpath(here / path, ROOT)
        target = ROOT / "docs" / PAGE_OF[file] if file in PAGE_OF else ROOT / file
        return f"]({os.path.relpath(target, page.parent)}{'#' + anchor if anchor else ''})"

    text = text_of(ROOT / ELSEWHERE[docname]) if docname in ELSEWHERE else source[0]
    source[0] = re.sub(r"\]\(([^)\s]+)\)", rebased, text)


def setup(app: Sphinx) -> dict[str, Any]:
    """Sphinx calls it."""
    app.add_directive("public", Public)
    app.add_directive("also", Also)
    app.add_directive("examples", Examples)
    app.add_directive("shared", Shared)
    app.add_directive("commands", Commands)
    app.connect("source-read", take_from_elsewhere)
    app.connect("env-check-consistency", _check)
    app.connect("autodoc-skip-member", skip_callback_steps)
    app.connect("autodoc-process-docstring", mark_code, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", add_example, priority=600)  # after it
    return {"parallel_read_safe": False, "version": "1"}
