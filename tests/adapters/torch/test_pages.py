"""What the pages show runs, if it needs PyTorch: programs on pages, examples of public names (support/pages.py)."""

from support.page_cases import page_cases
from support.pages import programs

RANKS = (2,)

test_a_program_runs, test_the_example_of_a_public_name_runs, test_each_public_name_has_an_example = page_cases(
    frameworks=("torch",), names=("torch",)
)


def test_there_are_such_programs():
    assert {block.page for block in programs("torch")} >= {
        "README.md",
        "index.md",
        "get_started.md",
        "coming_from.md",
        "api/torch.md",
    }
