"""Every cell of the table in docs/slow_links.md: a compression and a feature give what one process computes, or are refused."""

import re

import pytest
from support.compression_table import COMPRESSIONS, FEATURES, REFUSALS

from hvdlite import errors

RANKS = (3,)
MORE_RANKS = (4,)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_cell(hvd, compression, feature):
    outcome = ""
    try:
        FEATURES[feature](hvd, COMPRESSIONS[compression](hvd))
    except errors.HvdliteError as error:
        outcome = f"{type(error).__name__}: {error}"
    outcomes = set(hvd.allgather_object(outcome)) - {""}  # ranks outside a process set have none
    refusal = REFUSALS.get((compression, feature))
    if refusal is None:
        assert not outcomes
    else:
        assert outcomes
        assert all(re.match(refusal, each) for each in outcomes), outcomes
