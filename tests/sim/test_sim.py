"""Whole jobs in virtual time: real engines of several ranks, stepped by one thread over an in-process network.

Stalls, deadlocks, deaths at every moment, lost hosts, heartbeats, what is counted, and how little an idle engine does: what
the product promises in seconds is asserted here to the microsecond, whatever the machine does meanwhile. The cases are those of
tests/native/cases/sim; job.h there says what a rank's program can do.
"""

import pytest
from support import native_cases


@pytest.mark.parametrize("name", native_cases.names("sim."))
def test_case(name):
    native_cases.run(name, leaks=True)  # of ranks that fail
