"""Negotiation in shared memory: every interleaving of small cases (tests/native/testing/explore.h says what is checked)."""

import pytest
from support.testing import native

from hvdlite import _engine
from hvdlite.errors import InternalError, InvalidArgumentError, install

install(_engine.set_error_classes)

# Many hundred thousand states.
large = pytest.mark.slow

CASES = [
    # one tensor, the same order, opposite orders, the same tensor again
    (["a", "a"], 2),
    (["ab", "ab"], 2),
    (["ab", "ba"], 2),
    (["aa", "aa"], 1),
    pytest.param(["abc", "cab"], 1, marks=large),
    (["aba", "baa"], 1),
    # a tensor that one member lacks, and one that it has in excess
    (["ab", "b"], 1),
    (["a", "bca"], 1),
    # ranks that disagree, first, last, and in between
    (["A", "a"], 1),
    (["aAb", "aab"], 1),
    (["bA", "ab"], 1),
    (["aA", "Aa"], 1),
    # join
    (["+", "+"], 1),
    pytest.param(["a+", "ab+"], 1, marks=large),
    (["+", "ab+"], 0),
    pytest.param(["a+a", "b+a"], 1, marks=large),
    (["A+", "a+"], 0),
    # a member leaves
    (["a", "a."], 1),
    (["ab", "b."], 1),
    (["ab", "."], 1),
    (["a+", "."], 0),
    # three members
    (["a", "a", "a"], 1),
    (["ab", "ba", "ab"], 0),
    pytest.param(["ab", "ab", "ba"], 1, marks=large),
    (["a", "A", "a"], 1),
    (["ab", "b", "a"], 0),
    pytest.param(["a+", "b+", "+"], 0, marks=large),
    (["a", "a", "."], 0),
]


@pytest.mark.parametrize(("programs", "closings"), CASES, ids=lambda value: str(value))
def test_every_interleaving_agrees(programs, closings):
    states = native.explore_ledger(programs, closings)
    assert states > len("".join(programs))  # it did walk


def test_a_letter_that_means_nothing_is_refused():
    with pytest.raises(InvalidArgumentError, match="not 'x'"):
        native.explore_ledger(["x", "a"])
    with pytest.raises(InvalidArgumentError, match="3 members"):
        native.explore_ledger(["a"] * 4)


@pytest.mark.parametrize(
    ("broken_rule", "programs"),
    [
        (2, ["aab", "Aab"]),
        (3, ["Aa", "aA"]),
        pytest.param(3, ["a+b", "ab+"], marks=large),
        (4, ["A", "a"]),
        (5, ["a", "a."]),
    ],
)
def test_every_rule_is_needed(broken_rule, programs):
    native.explore_ledger(programs, 1)
    with pytest.raises(InternalError, match=r"ledger is wrong|kInLedger"):
        native.explore_ledger(programs, 1, broken_rule)
