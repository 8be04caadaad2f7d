"""The programs on the pages of the documentation that need PyTorch run (support/pages.py)."""

import pytest
from support.pages import programs

RANKS = (2,)
PROGRAMS = programs("torch")


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs(hvd, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block.run()


def test_there_are_such_programs():
    assert {block.page for block in PROGRAMS} >= {"README.md", "index.md", "get_started.md", "coming_from.md", "api/torch.md"}
