"""The tests of the programs on pages, for the files test_pages.py and test_*_pages.py: one file for each set of frameworks."""

from collections.abc import Callable, Sequence

import pytest
from support.pages import examples, function_of, programs
from support.reference import check_page


def page_cases(frameworks: Sequence[str], names: Sequence[str]) -> tuple[Callable[..., None], ...]:
    """Makes three tests, which a file assigns to test_a_program_runs, test_the_example_of_a_public_name_runs and
    test_each_public_name_has_an_example.

    Args:
        frameworks: the programs that import one or more of these, and no other framework, are run. If it is empty, the programs
            without a framework are run.
        names: the names of pages of public names.
    """

    @pytest.mark.parametrize("block", programs(*frameworks), ids=str)
    def test_a_program_runs(hvd, block, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        block.run()

    @pytest.mark.parametrize("example", examples(*names), ids=str)
    def test_the_example_of_a_public_name_runs(hvd, example, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        function_of(example)()

    @pytest.mark.parametrize("page", names)
    def test_each_public_name_has_an_example(hvd, page):
        check_page(page)

    return test_a_program_runs, test_the_example_of_a_public_name_runs, test_each_public_name_has_an_example
