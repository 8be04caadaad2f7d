"""What the examples share (examples/common.py), and what each of them says about itself."""

import ast
import io
import json
import re
import sys
from pathlib import Path

import pytest
from support.modules import module_of

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if path.stem != "common")


@pytest.fixture(scope="module")
def common():
    return module_of(EXAMPLES / "common.py")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_has_a_bar(common, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    show = common.progress_bar(0, "epoch 1/2")
    show(0.5, 1.25)
    show(1.0, 1.0)
    assert sys.stderr.getvalue().startswith(f"epoch 1/2 [{'#' * 15}{'.' * 15}] loss 1.250\r")
    common.progress_bar(1, "another rank")(0.5, 1.0)
    assert "another rank" not in sys.stderr.getvalue()


def test_a_log_has_lines_of_rank_0_and_no_bar(common, capsys):
    common.progress_bar(0, "epoch 1/2")(0.5, 1.25)
    for rank in range(3):
        common.speaker(rank)(f"rank {rank}")
    assert capsys.readouterr() == ("rank 0\n", "")


def test_help_shows_the_docstring_and_defaults(common, capsys):
    with pytest.raises(SystemExit):
        common.parse_digits(common.make_parser("Trains.\n\n    mpirun -n 2 python it.py\n"), ["--help"], "FILE")
    text = capsys.readouterr().out
    assert "    mpirun -n 2 python it.py" in text
    assert "(default: 0.02)" in text


def test_weights_are_compared_bit_by_bit(common):
    import numpy as np

    ones = [np.ones(3), np.zeros(2)]
    assert common.describe_weights(ones, lambda own: [own, own]) == "weights on the 2 rank(s) are bit-identical"
    assert "DIFFERENT" in common.describe_weights(ones, lambda own: [own, "another"])


def test_the_page_lists_all_examples():
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+\.py)`", page, re.MULTILINE)) == sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_an_example_says_what_to_run_and_what_one_should_see(path):
    tree = ast.parse(path.read_text())
    text = ast.get_docstring(tree)
    assert path.name in text
    assert "mpirun -n" in text or "hvdlite run -n" in text
    assert any(words in text for words in ("You should see", "prints", "falls"))
    shared = {node.name for node in ast.parse((EXAMPLES / "common.py").read_text()).body if isinstance(node, ast.FunctionDef)}
    assert not shared & {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_packages_that_the_tutorial_names_are_all_that_it_needs():
    """The notebook names `pip install '.[torch,examples]'`. Its functions travel to ranks, so it needs cloudpickle."""
    cells = json.loads((EXAMPLES / "tutorial.ipynb").read_text())["cells"]
    assert any(".[torch,examples]" in line for cell in cells if cell["cell_type"] == "markdown" for line in cell["source"])
    lines = (line for cell in cells if cell["cell_type"] == "code" for line in [*cell["source"], "\n"])
    code = "".join(line for line in lines if not line.startswith("%"))
    found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in found if isinstance(node, ast.ImportFrom) and node.module}
    imported = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names)
    imported -= {"hvdlite", "numpy", "torch", "IPython"}
    extra = re.search(r"^examples = (\[.*\])$", (EXAMPLES.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert {name.replace("sklearn", "scikit-learn") for name in imported} | {"cloudpickle"} <= set(ast.literal_eval(extra[1]))
