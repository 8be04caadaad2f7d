"""A file of more than 400 lines, code or page, says in its first lines why it is that long."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT = 400
KINDS = {".py", ".pyi", ".h", ".cc", ".cu", ".md"}


def long_files(root):
    """The files of code and the pages in the folders of a tree that are over the limit, without build outputs."""
    for folder in ("csrc", "hvdlite", "tests", "tools", "_build", "examples", "docs"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in KINDS and path.is_file() and len(path.read_text().splitlines()) > LIMIT:
                yield path


def says_why(path):
    return f"ver {LIMIT} lines" in " ".join(path.read_text().split()[:300])


@pytest.mark.parametrize("path", [str(path.relative_to(ROOT)) for path in long_files(ROOT)])
def test_a_long_file_says_why(path):
    assert says_why(ROOT / path)


def test_a_long_file_without_a_reason_is_found(tmp_path):
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "short.cc").write_text("//\n" * LIMIT)
    (tmp_path / "csrc" / "silent.cc").write_text("//\n" * (LIMIT + 1))
    (tmp_path / "csrc" / "why.h").write_text("// Over 400 lines, because of a table.\n" + "//\n" * LIMIT)
    found = list(long_files(tmp_path))
    assert [path.name for path in found] == ["silent.cc", "why.h"]
    assert [says_why(path) for path in found] == [False, True]
