"""The examples of public names: each shows its name, and a page without one of them is found (docs/name_examples.py)."""

import re

import pytest
from support.pages import name_examples
from support.reference import REFERENCE, without_example


@pytest.mark.parametrize("page", REFERENCE)
def test_an_example_uses_its_name_and_is_short(page):
    for key, example in name_examples.examples(page).items():
        name = key if re.search(rf"\b{key}\b", example.code) else key.partition("_")[2]
        assert name, f"{example} does not use {key}"
        assert re.search(rf"\b{name}\b", example.code), f"{example} does not use {name}"
        assert len(example.code.splitlines()) <= 24, f"{example} is long"


@pytest.mark.parametrize("page", REFERENCE)
def test_a_page_shows_how_its_examples_begin(page):
    assert "```{eval-rst}\n.. examples::\n```" in REFERENCE[page]
    assert ".init()" in name_examples.beginning(page)


def test_a_name_without_an_example_is_found():
    class Counter:
        def count(self):
            """Counts."""

        def reset(self):
            """Starts again."""

    def example(name, code):
        return name_examples.Example("page", name, "", code)

    examples = {"Counter": example("Counter", "Counter().count()"), "start": example("start", "start()")}
    start, same, other = (lambda: None), None, (lambda: None)
    names = [("Counter", Counter), ("start", start), ("begin", start), ("stop", other), ("Sum", 1), ("One", 1)]
    assert same is None
    assert list(without_example(names, examples)) == ["Counter.reset", "stop", "Sum", "One"]
