"""The notebook examples/tutorial.ipynb runs as a whole (slow), and shows what its text says; its file has no results."""

import ast
import json
from pathlib import Path

import pytest
from support.job import job_environment
from support.limits import DEADLINE

TUTORIAL = Path(__file__).parents[2] / "examples" / "tutorial.ipynb"


def test_the_file_has_no_results():
    """They would differ in each run: times, process ids, the order in which ranks print."""
    for cell in json.loads(TUTORIAL.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            code = "".join(line for line in cell["source"] if not line.startswith("%"))
            ast.parse(code)


def shown(cell):
    """All that a cell has printed, and its result as text."""
    streams = "".join(output["text"] for output in cell.outputs if output.output_type == "stream")
    return streams + "".join(output.data.get("text/plain", "") for output in cell.outputs if "data" in output)


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The cells after a run, by a word of their code."""
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient: pip install nbclient ipykernel")
    nbformat = pytest.importorskip("nbformat")
    for package in ("ipykernel", "matplotlib", "sklearn", "torch", "cloudpickle"):
        pytest.importorskip(package)
    notebook = nbformat.read(TUTORIAL, as_version=4)
    folder = tmp_path_factory.mktemp("tutorial")
    client = nbclient.NotebookClient(notebook, timeout=DEADLINE, kernel_name="python3", coalesce_streams=True)
    environment = {**job_environment(), "TMPDIR": str(folder), "IPYTHONDIR": str(folder / "ipython")}
    client.execute(cwd=str(folder), env=environment)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]

    def find(word):
        (found,) = (cell for cell in code if word in cell.source)
        return found

    return find


@pytest.mark.slow
def test_ranks_run_and_return_their_results(cells):
    text = shown(cells("run(hello"))
    for rank in range(3):
        assert f"[{rank}]<stdout>: I am rank {rank} of 3\n" in text
    assert text.endswith("[0, 10, 20]")


@pytest.mark.slow
@pytest.mark.parametrize("word", ["imshow", "axis.plot"])
def test_a_drawing_is_there(cells, word):
    (data,) = (output.data for output in cells(word).outputs if "data" in output)
    assert len(data["image/png"]) > 4000


@pytest.mark.slow
def test_the_network_learns_and_ranks_agree(cells):
    text = shown(cells("def train("))
    share, _, same = text.partition("% of the test images are read correctly\nthe ranks have the same weights: ")
    assert int(share) > 85
    assert same.strip() == "True"


@pytest.mark.slow
def test_the_timeline_names_the_late_rank(cells):
    text = shown(cells("hvdlite.timeline report"))
    assert "report.html: traces of 2 ranks" in text
    assert "Rank 1 (host " in text
    assert "read_data" in text
    (page,) = (output.data["text/html"] for output in cells("srcdoc").outputs)
    assert "hvdlite timeline" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "on_rank_0", "on_rank_1"),
    [
        ("attempt(different_shapes)", "MismatchError: allreduce of 'x'", "MismatchError: allreduce of 'x'"),
        ("attempt(a_missing_rank)", "AbortedError: allreduce of 'x'", "ended without an error"),
        ("attempt(a_forgotten_broadcast)", "MismatchError: DistributedOptimizer", "MismatchError: DistributedOptimizer"),
    ],
)
def test_what_is_broken_is_reported(cells, word, on_rank_0, on_rank_1):
    text = shown(cells(word))
    assert f"rank 0: {on_rank_0}" in text
    assert f"rank 1: {on_rank_1}" in text
    said = {
        "attempt(different_shapes)": "shape differs: [3] on rank 0, [4] on rank 1; give them one shape or different names",
        "attempt(a_missing_rank)": "has left: its program ended",
        "attempt(a_forgotten_broadcast)": "the ranks do not train one model",
    }
    assert said[word] in text
