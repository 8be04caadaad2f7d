"""Each type's name means one thing: docs/architecture.md has the vocabulary, and its rules about names.

A name has one home, but for three cases. The table of the vocabulary names a concept that has a type in several places and says
where (`Request` (C++, Python)). A type inside another one may carry a general word, since it is always named with its class
(`Job::Limits`). A header that declares another library's functions keeps that library's names.
"""

import ast
import collections
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERAL = {
    "Actions",
    "Address",
    "Block",
    "Context",
    "Effects",
    "Facts",
    "Header",
    "Kind",
    "Limits",
    "Report",
    "Settings",
    "Stage",
    "State",
    "Step",
}
FOREIGN = re.compile(r"_abi\.h|tf_api\.h")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')
SCOPE = re.compile(
    r"\b(?:class|struct|enum|union)\s+(?:\[\[\w+\]\]\s*|alignas\([^)]*\)\s*)*(?P<type>[A-Za-z_][\w:]*)(?:\s+final)?\s*(?::[^;{()]*)?\{"
    r"|\{|\}"
)


def native_types(text):
    """The names of the types that a C++ text defines, each with the types that it lies in."""
    open_scopes = []
    for scope in SCOPE.finditer(COMMENT_OR_STRING.sub("", text)):
        if scope["type"]:
            open_scopes.append(scope["type"])
            yield "::".join(each for each in open_scopes if each)
        elif scope[0] == "{":
            open_scopes.append("")
        else:
            open_scopes.pop()


def python_types(text):
    return [node.name.lstrip("_") for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]


def homes(root=ROOT):
    """Where each name is defined."""
    found = collections.defaultdict(list)
    for path in sorted(path for kind in ("h", "cc", "cu") for path in (root / "csrc").rglob(f"*.{kind}")):
        if not FOREIGN.search(path.name):
            for name in native_types(path.read_text()):
                found[name.split("::")[-1]].append((path, name))
    for path in sorted((root / "hvdlite").rglob("*.py")):
        for name in python_types(path.read_text()):
            found[name].append((path, name))
    return found


def vocabulary():
    """For each type in the table, in how many places it is."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    table = text.split("## Vocabulary")[1].split("\n## ")[0]
    named = {}
    for row in re.findall(r"^\|(?:[^|]*\|){2}([^|]*)\|$", table, re.M):
        for name, places in re.findall(r"`(\w+)`(?: \(([^)]*)\))?", row):
            assert name not in named, f"{name} is in two rows"
            named[name] = len(places.split(", ")) if places else 1
    return named


def test_a_name_means_one_thing():
    named = vocabulary()
    wrong = []
    for name, places in homes().items():
        top = [place for place in places if not ("::" in place[1] and name in GENERAL)]
        if len(top) > max(1, named.get(name, 1)):
            wrong.append((name, [f"{path.relative_to(ROOT)}: {full}" for path, full in top]))
    assert not wrong


def test_the_table_names_types_that_there_are():
    found = homes()
    wrong = {name: (count, len(found[name])) for name, count in vocabulary().items() if len(found[name]) < count}
    assert not wrong


def test_types_are_found_with_what_they_lie_in():
    text = """
    namespace a { // struct Not {
    struct Outer final : Base<int> { enum class Kind : char { kOne }; void f() { if (x) { } } struct Inner { int y; }; };
    const char* text = "struct Nor {"; struct Declared; class Outer::Hidden { };
    template <typename T> class alignas(64) Wide { };
    }
    """
    assert list(native_types(text)) == ["Outer", "Outer::Kind", "Outer::Inner", "Outer::Hidden", "Wide"]
    assert python_types("class _A:\n    class B: pass\ndef f():\n    class C: pass") == ["A", "B", "C"]


def test_two_of_one_name_are_found(tmp_path):
    for folder, name, text in [
        ("csrc/a", "x.h", "struct Same { struct Kind { }; };"),
        ("csrc/b", "y.cc", "class Same { };"),
        ("hvdlite", "z.py", "class _Same: pass"),
        ("csrc/c", "cuda_abi.h", "struct Same { };"),
    ]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / name).write_text(text)
    assert [path.name for path, _ in homes(tmp_path)["Same"]] == ["x.h", "y.cc", "z.py"]
