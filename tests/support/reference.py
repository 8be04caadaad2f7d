"""Checks that each public name of the API reference has an example (docs/name_examples.py)."""

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from support.pages import DOCS, name_examples

REFERENCE = {page.stem: page.read_text() for page in sorted((DOCS / "api").glob("*.md"))}
DIRECTIVE = re.compile(r"^\.\. (?:public|also):: (\S+)\n((?:   .*\n)+)", re.MULTILINE)


def names_on(page: str) -> Iterator[tuple[str, Any]]:
    """The public names that a page documents, with their values."""
    for module, names in DIRECTIVE.findall(REFERENCE[page]):
        for name in names.split():
            yield name, getattr(importlib.import_module(module), name)


def members(cls: type) -> list[str]:
    """The names of a class's public methods and properties, without those that it inherits."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    wanted = (property, classmethod, staticmethod)
    return [
        name
        for name, value in vars(cls).items()
        if not name.startswith("_") and name not in inherited and (inspect.isroutine(value) or isinstance(value, wanted))
    ]


def without_example(names: Sequence[tuple[str, Any]], examples: Mapping[str, Any]) -> Iterator[str]:
    """The names, and members of classes, that no example shows. If a function or class has two names, one needs an example."""
    shown = [value for name, value in names if name in examples]
    for name, value in names:
        is_number = isinstance(value, int)
        if not (name in examples or (not is_number and any(value is other for other in shown))):
            yield name
        if inspect.isclass(value) and not issubclass(value, BaseException):
            code = "\n".join(each.code for key, each in examples.items() if key.partition("_")[0] == name)
            yield from (f"{name}.{each}" for each in members(value) if not re.search(rf"\b{each}\b", code))


def check_page(page: str) -> None:
    """Fails unless each public name of a page has an example, and each example belongs to a name. Imports their modules."""
    names, examples = list(names_on(page)), name_examples.examples(page)
    missing = list(without_example(names, examples))
    assert not missing, f"docs/api/examples/{page}.py has no example of {', '.join(missing)}"
    known = {name for name, _ in names}
    others = [key for key in examples if key not in known and key.partition("_")[0] not in known]
    assert not others, (
        f"docs/api/examples/{page}.py has examples of names that are not in docs/api/{page}.md: {', '.join(others)}"
    )
