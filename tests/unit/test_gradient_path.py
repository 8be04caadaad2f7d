"""docs/gradient_path.md lists the files that a steady gradient crosses; here a traced build is asked which these really are.

Python's functions are noted by a profile function, native ones by tests/native/trace. What the ranks ran is put together, for
one of them comes last and does more. The row "waiting" of the page has what an engine may do between two looks at its work.
"""

import re
import subprocess
from pathlib import Path

import pytest
from support.job import run_job

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "trace"
TREE = BUILD / "tree"
RECORD = BUILD / "cmake" / "trace" / "hvdlite_record.so"
# The levels of the page, from the top down.
LEVELS = {
    "door": r"hvdlite/",
    "bindings": r"csrc/bindings/",
    "engine": r"csrc/(engine|c_api)/",
    "collectives": r"csrc/collectives/",
    "below": r"csrc/(transport|base|job)/",
}
STEP = """
    import ctypes, os, sys
    import torch
    import hvdlite.torch as hvd

    hvd.init()
    record, folder, files = ctypes.CDLL(os.environ["RECORD"]), sys.argv[1], set()
    def note(frame, event, _):
        if event == "call":
            files.add(frame.f_code.co_filename)

    model = torch.nn.Linear(256, 256, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(20):
        optimizer.zero_grad()
        loss = model(torch.full((4, 256), hvd.rank() + 1.0)).sum()
        steady = step >= 10  # the start check is over
        if steady:
            hvd.barrier()
            record.record_functions(1)
            sys.setprofile(note)
        loss.backward()
        sys.setprofile(None)
        record.record_functions(0)
        optimizer.step()
    record.write_functions(f"{folder}/native.{hvd.rank()}".encode())
    with open(f"{folder}/python.{hvd.rank()}", "w") as file:
        file.write("\\n".join(files))
"""


def without_suffix(path: str) -> str:
    return re.sub(r"\.(h|cc|py)$", "", path)


def listed() -> dict[str, set[str]]:
    """What the page says: the files of each level."""
    page = (ROOT / "docs" / "gradient_path.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (.*) \|$", page, re.MULTILINE)
    assert rows
    found = {level: set(map(without_suffix, re.findall(r"`([\w/.]+)`", files))) for level, _, files in rows}
    assert {level: len(files) for level, files in found.items()} == {level: int(count) for level, count, _ in rows}
    return found


def native_files(noted: str) -> set[str]:
    """The sources of functions, of which each line has the library and the place in it."""
    places: dict[str, list[str]] = {}
    for line in noted.splitlines():
        library, place = line.rsplit(" ", 1)
        places.setdefault(library, []).append(place)
    sources: set[str] = set()
    for library, of_library in places.items():
        lines = subprocess.check_output(["addr2line", "-e", library], input="\n".join(of_library), text=True)
        sources |= set(re.findall(r"/(csrc/[\w/]+\.(?:h|cc)):", lines))
    return sources


@pytest.mark.slow
def test_the_page_lists_the_files_that_a_steady_gradient_crosses(tmp_path):
    built = subprocess.run(["make", "trace"], cwd=ROOT, text=True, capture_output=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    env = {"LD_PRELOAD": str(RECORD), "RECORD": str(RECORD), "PYTHONPATH": str(TREE)}
    job = run_job(STEP, 2, args=[str(tmp_path)], env=env)
    assert job.returncode == 0, job.report()
    crossed: set[str] = set()
    for rank in range(2):
        crossed |= native_files((tmp_path / f"native.{rank}").read_text())
        python = (tmp_path / f"python.{rank}").read_text().splitlines()
        crossed |= {str(Path(file).relative_to(TREE)) for file in python if file.startswith(str(TREE))}
    names = set(map(without_suffix, crossed))
    found = {level: {name for name in names if re.match(where, name)} for level, where in LEVELS.items()}
    assert not names - set().union(*found.values())
    expected = listed()
    waiting = expected.pop("waiting")
    assert {level: files - waiting for level, files in found.items()} == expected
