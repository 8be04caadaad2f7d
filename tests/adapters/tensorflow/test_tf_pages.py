"""What the pages show runs, if it needs TensorFlow or Keras: programs on pages, examples of public names (support/pages.py)."""

import pytest
from support.pages import examples, function_of, programs
from support.reference import check_page

RANKS = (2,)
NAMES = ("keras", "tensorflow")  # pages of public names
PROGRAMS = programs("tensorflow", "keras")


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_a_program_runs(hvd, block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block.run()


@pytest.mark.parametrize("example", examples(*NAMES), ids=str)
def test_the_example_of_a_public_name_runs(hvd, example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function_of(example)()


@pytest.mark.parametrize("page", NAMES)
def test_each_public_name_has_an_example(hvd, page):
    check_page(page)


def test_there_are_such_programs():
    assert {block.page for block in PROGRAMS} >= {"coming_from.md", "api/tensorflow.md", "api/keras.md"}
