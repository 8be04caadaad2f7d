"""The programs on the pages of the documentation that need TensorFlow or Keras run (support/pages.py)."""

import pytest
from support.pages import programs

RANKS = (2,)
PROGRAMS = programs("tensorflow", "keras")


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs(hvd, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block.run()


def test_there_are_such_programs():
    assert {block.page for block in PROGRAMS} >= {"coming_from.md", "api/tensorflow.md", "api/keras.md"}
