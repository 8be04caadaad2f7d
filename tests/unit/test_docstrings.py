"""Every public thing says what it is."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import hvdlite
from hvdlite import ops

PACKAGE = Path(__file__).parents[2] / "hvdlite"
MODULES = sorted(PACKAGE.rglob("*.py"))


def public(node, inside=""):
    """The public functions and classes of a syntax tree, with their names; methods of private classes are private."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            yield f"{inside}{child.name}", child
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{child.name}.")


def wrong_docstrings(path):
    """The places of a module whose docstring is missing or no sentence."""
    tree = ast.parse(path.read_text())
    place = path.relative_to(PACKAGE)
    if not ast.get_docstring(tree):
        yield f"{place}: none"
    for name, node in public(tree):
        text = ast.get_docstring(node) or ""
        if not text:
            yield f"{place}: {name} has none"
        elif not (text[0].isupper() or text[0].isdigit() or text[0] == "`"):
            yield f"{place}: {name}: starts in lower case"
        elif not text.split("\n\n")[0].rstrip().endswith((".", "?", ":")):
            yield f"{place}: {name}: the first paragraph has no end"


def test_modules_classes_and_functions_have_docstrings():
    assert len(MODULES) > 100
    assert not [wrong for path in MODULES for wrong in wrong_docstrings(path)]


def test_every_name_of_the_package_can_be_fetched():
    for name in hvdlite.__all__:
        assert getattr(hvdlite, name) is not None
    assert set(hvdlite.__all__) <= set(dir(hvdlite))
    with pytest.raises(AttributeError, match="has no attribute 'allreduc'"):
        hvdlite.allreduc  # noqa: B018


CORE = ["errors", "basics", "process_sets", "handles", "ops", "objects", "compression", "data", "elastic.state"]


@pytest.mark.parametrize("name", CORE)
def test_lists_of_names_are_complete(name):
    module = importlib.import_module(f"hvdlite.{name}")
    own = {
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
    assert own <= set(module.__all__) | {"Finish"} | INTERNAL.get(name, set())


# Public inside the package, offered to nobody else.
INTERNAL = {
    "basics": {"HorovodBasics"},
    "process_sets": {
        *(
            "bind_existing",
            "bind_global",
            "counter_of_ranks",
            "forget_all",
            "process_set_among",
            "process_set_ids_and_ranks",
            "register_initial",
            "root_arguments",
            "root_of",
            "set_of_ranks",
        ),
    },
}

COLLECTIVES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_say_over_whom_and_what_must_match(name):
    text = inspect.getdoc(getattr(ops, name))
    assert "Collective over `process_set`" in text
    assert re.search(r"must be the same on all (n )?ranks of the set", text)
    for section in ("Args:", "Returns:", "Raises:"):
        assert section in text
    for parameter in inspect.signature(getattr(ops, name)).parameters:
        assert f"    {parameter}:" in text


FUNCTIONS = [name for name in hvdlite.__all__ if inspect.isfunction(getattr(hvdlite, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_argument_is_described_here_or_at_the_function_that_is_named(name):
    text, read = "", [name]
    for each in read:  # it grows
        own = inspect.getdoc(getattr(hvdlite, each))
        text += own
        read += [base for base in FUNCTIONS if f"`{base}`" in own and base not in read]
    for parameter in inspect.signature(getattr(hvdlite, name)).parameters:
        assert re.search(rf"    {parameter}:|`{parameter}`", text), f"{name} does not describe {parameter}"


VARIANTS = [name for name in ops.__all__ if name.endswith("_") or "async" in name or name.startswith("grouped")]


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_point_to_their_base(name):
    text = inspect.getdoc(getattr(ops, name))
    bases = {name.removesuffix("_"), name.replace("_async", ""), name.removeprefix("grouped_")} - {name}
    assert any(f"`{base}`" in text for base in bases)
