"""Names of requests, the rule of op and average, alltoall's splits."""

import warnings

import numpy as np
import pytest

from hvdlite import requests
from hvdlite.errors import InvalidArgumentError
from hvdlite.requests import Adasum, Average, Kind, Max, Product, Sum, resolve_op, row_counts, tensor_name


def test_horovods_numbers():
    numbers = (Average, Sum, Adasum, requests.Min, Max, Product)
    assert numbers == (0, 1, 2, 3, 4, 5)


def test_names_carry_the_kind():
    assert tensor_name(Kind.ALLREDUCE, "w") == "allreduce.w"
    assert tensor_name(Kind.REDUCESCATTER, "noname.7") == "reducescatter.noname.7"
    assert tensor_name(Kind.ALLGATHER, "") == "allgather."


def test_group_members_are_numbered_from_one():
    assert requests.member_names("allreduce.g", 3) == ["allreduce.g_1of3", "allreduce.g_2of3", "allreduce.g_3of3"]
    assert requests.member_names("allreduce.g", 0) == []


def test_op_defaults_to_average():
    assert resolve_op(None, None) == Average
    assert resolve_op(Max, None) == Max


@pytest.mark.parametrize(("average", "op"), [(True, Average), (False, Sum)])
def test_average_still_works_with_a_warning(average, op):
    with pytest.warns(DeprecationWarning, match="replaced with `op`") as caught:
        assert resolve_op(None, average) == op
    assert caught[0].filename == __file__


def test_op_alone_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_op(Sum, None) == Sum


def test_op_and_average_together_are_refused():
    with pytest.raises(ValueError, match=r"^The op parameter supersedes average. Please provide only one of them.$"):
        resolve_op(Sum, True)


@pytest.mark.parametrize("op", [-1, 6, 1.0, "sum", True])
def test_what_is_no_operator_is_refused(op):
    with pytest.raises(InvalidArgumentError, match="is no reduce operator"):
        resolve_op(op, None)


def test_rows_are_divided_evenly_without_splits():
    assert row_counts(None, 6, 3) == [2, 2, 2]
    assert row_counts(None, 0, 3) == [0, 0, 0]
    with pytest.raises(InvalidArgumentError, match="not an even multiple of the number of workers"):
        row_counts(None, 7, 3)


def test_splits_may_leave_rows_out():
    assert row_counts([1, 0, 2], 5, 3) == [1, 0, 2]


@pytest.mark.parametrize(
    ("splits", "fragment"),
    [
        ([1, 2], "Number of entries in splits does not equal number of workers."),
        ([3, 3, 0], "Sum of splits entries is greater than the first dimension of tensor."),
        ([1, -1, 1], "negative entry"),
    ],
)
def test_splits_that_do_not_fit_are_refused(splits, fragment):
    with pytest.raises(InvalidArgumentError, match=fragment):
        row_counts(splits, 5, 3)


@pytest.mark.parametrize("splits", [[1, 2], (1, 2), np.array([1, 2]), np.array([1, 2], np.int32), range(1, 3)])
def test_splits_of_many_kinds(splits):
    assert requests.integers_of(splits) == [1, 2]


@pytest.mark.parametrize("splits", [np.ones((2, 2), int), [1.5, 2], "ab", 3, np.array([1.0])])
def test_what_are_no_splits(splits):
    with pytest.raises(InvalidArgumentError, match="alltoall expects"):
        requests.integers_of(splits)
