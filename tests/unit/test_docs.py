"""The documentation against the code: what it names exists, and what it quotes is what is there."""

import argparse
import ast
import functools
import importlib.util
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.pages import PAGES, ROOT, name_of, python_blocks
from support.thread_ranks import ALLREDUCE, Rank, engines, in_threads

from hvdlite._native import LoadedMpi, choose_shim
from hvdlite.config import launcher_claim
from hvdlite.dtypes import code_of_name
from hvdlite.errors import ERRORS, HvdliteError, NotInitializedError
from hvdlite.knobs import KNOBS
from hvdlite.launcher.cli import make_parser
from hvdlite.requests import Adasum, Average
from hvdlite.startup import check_launch
from hvdlite.torchrun import join

TEXT = {name_of(page): page.read_text() for page in PAGES}

every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def one_line(text: str) -> str:
    return " ".join(text.split())


# --- every page ---------------------------------------------------------------------------------------------------------


@every_page
def test_named_files_exist(page):
    named = re.findall(r"`((?:csrc|hvdlite|tests|docs|examples|_build)/[\w./*-]+)`", prose(page.read_text()))
    assert not [name for name in named if not list(ROOT.glob(name))]


@every_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page.read_text())):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
        assert not anchor or anchor in anchors, target


@every_page
def test_python_can_be_read(page):
    for block in python_blocks(page):
        compile(block.code, str(block), "exec")
        assert not set(block.words) - {"fragment"}, f"{block}: a block of Python has no mark but fragment"


TEXTS = ("could", "does", "has", "was")  # errors whose text begins with the name hvdlite go on like this


def command_lines(page):
    """Lines of the blocks that have commands or output, without a prompt and without what follows."""
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    text = "".join(block[2] for block in found if block[1] in ("", "sh"))
    return [line.removeprefix("$ ").split("#")[0].split("<")[0].split() for line in text.splitlines() if line.strip()]


@functools.cache
def subcommands_and_targets():
    """The parsers of the subcommands of hvdlite, by name, and the targets of make."""
    (subcommands,) = (action.choices for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return subcommands, re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()


@every_page
def test_commands_exist(page):
    subcommands, targets = subcommands_and_targets()
    for words in command_lines(page):
        if words[:1] == ["hvdlite"] and len(words) > 1 and words[1].islower() and words[1] not in TEXTS:
            assert words[1] in subcommands, words
            own = list(itertools.takewhile(lambda word: word != "python", words[2:]))
            flags = {word.partition("=")[0] for word in own if word.startswith("--")}
            assert not flags - {*subcommands[words[1]]._option_string_actions}, words
        if words[:1] == ["make"] and len(words) > 1:
            assert words[1] in targets, words
        if "-m" in words and words[words.index("-m") - 1].endswith("python"):
            module = words[words.index("-m") + 1]
            assert not module.startswith("hvdlite") or importlib.util.find_spec(module), words


@every_page
def test_variables_are_knobs(page):
    # of the build, of make, of the C ABI
    elsewhere = {"HVDLITE_MPI", "HVDLITE_FUZZ_SECONDS", "HVDLITE_FUZZ_SEED"}
    elsewhere |= {"HVDLITE_FLAG_ABSENT", "HVDLITE_<COLLECTIVE>_ALGORITHM"}
    known = {knob.variable for knob in KNOBS} | elsewhere
    named = re.findall(r"\bHVDLITE_(?:[A-Z0-9_<>]*[A-Z0-9>])", page.read_text())
    assert not [name for name in named if name not in known and not name.startswith("HVDLITE_E_")]


# --- README and the first page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "name"), [("README.md", "torch_minimal.py"), ("get_started.md", "numpy_allreduce.py")])
def test_pages_show_the_examples_as_they_are(page, name):
    assert (ROOT / "examples" / name).read_text() in blocks(TEXT[page], "python")


def test_the_readme_is_short():
    assert len(TEXT["README.md"].splitlines()) < 150


# --- docs/gradient_path.md ----------------------------------------------------------------------------------------------

LAYERS = ["hvdlite/torch", "csrc/bindings", "csrc/c_api", "csrc/engine", "csrc/collectives", "csrc/transport"]
CALLABLE = re.compile(r"`([A-Za-z_]\w*(?:(?:::|\.)\w+)?)`")


def layer_of(path: str) -> int:
    return max((len(layer), place) for place, layer in enumerate(LAYERS) if path.startswith(layer))[1]


@functools.cache
def python_names(path: Path) -> set[str]:
    """Functions and classes at the top of a module, and methods with their class in front."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{child.name}" for child in node.body if isinstance(child, ast.FunctionDef)}
    return names


def is_defined(name: str, path: Path) -> bool:
    if path.suffix == ".py":
        return name in python_names(path)
    text, pattern = path.read_text(), rf"^(?!\s*(?://|return\b)).*(?<![\w:.>]){re.escape(name)}\("
    return f"{name}(" in text and re.search(pattern, text, re.MULTILINE) is not None


SOURCES = sorted([*(ROOT / "hvdlite").rglob("*.py"), *(ROOT / "csrc").rglob("*.cc")])


def test_the_gradient_goes_down_through_at_most_twelve_files():
    steps = re.findall(r"^\d+\. .*?(?=^\d+\. |^## |\Z)", TEXT["gradient_path.md"], re.MULTILINE | re.DOTALL)
    files = [re.search(r"`([\w/]+\.(?:py|cc))`", step)[1] for step in steps]
    assert 1 < len(files) <= 12
    assert len(set(files)) == len(files)
    layers = [layer_of(file) for file in files]
    assert layers == sorted(layers)
    for step, file in zip(steps, files, strict=True):
        named = CALLABLE.findall(step)
        assert any(is_defined(name, ROOT / file) for name in named), f"{file} defines none of {named}"


def test_functions_of_the_gradient_path_exist():
    for name in CALLABLE.findall(TEXT["gradient_path.md"]):
        if "." in name or "::" in name or "_" in name:
            assert any(is_defined(name, path) for path in SOURCES), name


def test_functions_beside_the_path_are_where_it_says():
    beside = TEXT["gradient_path.md"].partition("## Beside the path")[2]
    rows = re.findall(r"^\| .* \| (`.*`) \|$", beside, re.MULTILINE)
    assert rows
    for place in "; ".join(rows).split("; "):
        file, *names = re.findall(r"`([^`]+)`", place)
        assert names, file
        for name in names:
            assert is_defined(name, ROOT / file), f"{name} in {file}"


# --- docs/architecture.md -----------------------------------------------------------------------------------------------


def test_all_control_messages_are_described():
    header = (ROOT / "csrc" / "engine" / "model" / "messages.h").read_text()
    declared = re.search(r"using Message =\s*std::variant<([^>]*)>", header)[1]
    rows = re.findall(r"^\| `(\w+)` \|", TEXT["architecture.md"], re.MULTILINE)
    assert rows == [name.strip() for name in declared.split(",")]


def test_all_parts_are_in_the_drawing():
    drawing = blocks(TEXT["architecture.md"], "text")[0]
    for folder in (ROOT / "csrc").iterdir():
        assert f"csrc/{folder.name}" in drawing
    for room in (ROOT / "csrc" / "engine").iterdir():
        assert not room.is_dir() or re.search(rf"\b{room.name}\b", drawing)
    package = ROOT / "hvdlite"
    modules = {path.stem for path in package.glob("*.py") if not path.stem.startswith("_")}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert not [name for name in sorted(modules | folders) if not re.search(rf"\b{name}\b", drawing)]


# --- docs/algorithms.md -------------------------------------------------------------------------------------------------


NOT_FORCED = ("allreduce_push", "allreduce_coded", "allreduce_adasum")  # chosen by a tensor's place, a codec, the op


def test_each_algorithm_has_a_heading_and_a_file():
    knobs = [knob for knob in KNOBS if knob.name.endswith("_algorithm")]
    names = [f"{knob.name.removesuffix('_algorithm')}_{choice}" for knob in knobs for choice in knob.choices[1:]]
    headings = re.findall(r"^## (\w+_\w+)$", TEXT["algorithms.md"], re.MULTILINE)
    assert [heading for heading in headings if heading not in NOT_FORCED] == names
    for name in [*names, *NOT_FORCED]:
        assert name in headings
        assert (ROOT / "csrc" / "collectives" / f"{name}.cc").exists()
    forced = re.findall(r"^## (\w+_\w+)\n\nKnob value `(\w+)`", TEXT["algorithms.md"], re.MULTILINE)
    assert [heading for heading, value in forced if heading.endswith(f"_{value}")] == names


# --- docs/errors.md -----------------------------------------------------------------------------------------------------


def documented(text: str) -> bool:
    """Is a text on the page, but for the host and the process id that MPI adds to a rank?"""
    page = re.sub(r" \(host \w+, pid \d+\)", "", TEXT["errors.md"])
    return one_line(text) in one_line(page)


def test_all_errors_are_described():
    headings = re.findall(r"^## (\w+)$", TEXT["errors.md"], re.MULTILINE)
    assert sorted(headings) == sorted(row.python.__name__ for row in ERRORS.values())


def test_texts_of_local_errors_are_the_real_ones():
    with pytest.raises(HvdliteError) as dtype:
        code_of_name("float128", "NumPy array")
    for error in (NotInitializedError(), dtype.value):
        assert documented(str(error))


def test_the_text_about_another_launcher_is_the_real_one():
    alone = SimpleNamespace(COMM_WORLD=SimpleNamespace(size=1), Get_library_version=lambda: "MPI", __file__="MPI.so")
    with pytest.raises(HvdliteError) as error:
        check_launch(alone, launcher_claim({"PMI_SIZE": "4"}))
    assert documented(str(error.value).split(" Loaded:")[0])


def test_the_text_about_another_mpi_is_the_real_one_under_its_class():
    with pytest.raises(HvdliteError) as error:
        choose_shim(LoadedMpi("openmpi", "Open MPI v5.0.11", "MPI.so"), {"mpich": "hvdlite_mpi_mpich.so"})
    section = TEXT["errors.md"].split(f"\n## {error.type.__name__}\n")[1].split("\n## ")[0]
    assert f"```\n{str(error.value).split(' (')[0]}\n```" in section


def test_the_text_about_mpi_before_torchruns_job_is_the_real_one(monkeypatch, tmp_path):
    (tmp_path / "maps").write_text("/lib/libpmix.so.2\n")
    monkeypatch.setattr(join._native, "loaded_mpi", lambda: LoadedMpi("openmpi", "Open MPI v5.0.11", "MPI.so"))
    monkeypatch.setattr(join, "_MAPS", tmp_path / "maps")
    with pytest.raises(HvdliteError) as error:
        join._library(SimpleNamespace(Is_initialized=lambda: True), SimpleNamespace(size=2))
    assert documented(str(error.value))


def failing(rank: Rank, name: str, array: np.ndarray) -> str:
    with pytest.raises(HvdliteError) as error:
        rank.allreduce(f"allreduce.{name}", array)
    return str(error.value)


def refused(rank: Rank, name: str, dtype: str, op: int) -> str:
    with pytest.raises(HvdliteError) as error:
        rank.allreduce(f"allreduce.{name}", np.ones(2, dtype), op=op)
    return str(error.value)


def test_texts_about_unsupported_reductions_are_the_real_ones():
    with engines(3) as ranks:
        assert documented(refused(ranks[0], "conv1.weight", "f4", Adasum))
        assert documented(refused(ranks[0], "mask", "?", Average))


QUOTED = {
    "dtype": lambda rank: failing(rank, "conv1.weight", np.ones(3, "f4" if rank.rank else "f8")),
    "shape": lambda rank: failing(rank, "conv1.weight", np.ones(3 + rank.rank)),
    "deadlock": lambda rank: failing(rank, "bias" if rank.rank else "biass", np.ones(3)),
    "left": lambda rank: rank.engine.shutdown() if rank.rank else failing(rank, "grad", np.ones(3)),
}


@pytest.mark.parametrize("case", QUOTED)
def test_texts_of_agreed_errors_are_the_real_ones(case):
    with engines(2) as ranks:
        for text in in_threads(ranks, QUOTED[case]):
            assert text is None or documented(text), text


def test_the_text_about_a_name_in_flight_is_the_real_one():
    with engines(2) as ranks:
        ranks[0].start(ALLREDUCE, "allreduce.dup", np.ones(1), np.ones(1))
        assert documented(failing(ranks[0], "dup", np.ones(1)))
