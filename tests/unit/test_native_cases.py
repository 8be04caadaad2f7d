"""The cases of tests/native/cases: the device layer on the fake driver and the fake NCCL, and parts of the engine alone."""

import pytest
from support import native_cases

NAMES = [name for name in native_cases.names() if not name.startswith("sim.")]  # those are tests/sim


# The largest spaces of states; smaller ones of their kinds are beside them.
LARGE = (
    "three_ranks_of_which_one_leaves",
    "two_verdicts_at_any_time",
    "copies_and_a_join_behind_a_name",
    "copies_of_three_in_other_orders",
)
SLOW = {f"engine.negotiation_explored.{name}" for name in LARGE}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in NAMES])
def test_case(name):
    native_cases.run(name)


@pytest.mark.parametrize("seed", range(2, 6))
@pytest.mark.parametrize(
    "name",
    [
        "device.buffers.memory_is_handed_on_in_the_order_of_streams",
        "device.gpu.events_order_streams_without_the_host",
        "device.nccl.a_communicator_is_made_and_used_without_blocking",
    ],
)
def test_order_holds_whenever_the_gpu_gets_to_it(name, seed):
    native_cases.run(name, seed=seed, delay=2000, delay_percent=60)
