"""The stub of the native module says what the module has: every name, method and argument."""

import ast
import re
from pathlib import Path

import pytest

from hvdlite import _engine

STUB = ast.parse(Path(_engine.__file__).with_name("_engine.pyi").read_text())
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name: node for node in STUB.body if isinstance(node, ast.FunctionDef)}


def public(names):
    return {name for name in names if not name.startswith("_")}


def arguments(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args if argument.arg != "self"]


def native_arguments(function: object) -> list[str]:
    """From the signature that nanobind writes into the first line of a docstring."""
    signature = str(function.__doc__).splitlines()[0]
    inside = re.search(r"\((.*)\) ->", signature) or re.search(r"\((.*)\)", signature)
    assert inside, signature
    names = re.findall(r"(?:^|, )(\w+)(?=:|=|,|$)", inside.group(1))
    return [name for name in names if name != "self"]


def test_the_module_and_its_stub_have_the_same_names():
    assert public(CLASSES) | public(FUNCTIONS) == public(dir(_engine))


@pytest.mark.parametrize("name", CLASSES)
def test_classes_have_the_same_members(name):
    body = [node for kind in (name, *(base.id for base in CLASSES[name].bases)) for node in CLASSES[kind].body]
    members = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    members |= {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    assert public(members) == public(dir(getattr(_engine, name)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_same_arguments(name):
    assert native_arguments(getattr(_engine, name)) == arguments(FUNCTIONS[name])


@pytest.mark.parametrize("name", [node.name for node in CLASSES["Engine"].body if isinstance(node, ast.FunctionDef)])
def test_methods_of_the_engine_have_the_same_arguments(name):
    stub = next(node for node in CLASSES["Engine"].body if isinstance(node, ast.FunctionDef) and node.name == name)
    if any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in stub.decorator_list):
        assert isinstance(vars(_engine.Engine)[name], property) or not callable(vars(_engine.Engine)[name])
        return
    assert native_arguments(getattr(_engine.Engine, name)) == arguments(stub)


def test_only_the_stub_documents_the_names():
    """A text in the native code would be a second one. Its docstrings are the signatures that nanobind writes."""
    types = [getattr(_engine, name) for name in CLASSES]
    documented = [_engine, *types, *(getattr(_engine, name) for name in FUNCTIONS)]
    documented += [member for kind in types for name, member in vars(kind).items() if not name.startswith("__")]
    texts = [text for each in documented for text in str(each.__doc__ or "").splitlines()]
    assert [text for text in texts if not re.match(r"\w*\(", text)] == []
