"""Every function of torch.distributed does on backend "hvdlite" what docs/torch_distributed.md says."""

import pytest
import torch
import torch.distributed as dist
from groups import RANK, SIZE, WORLD, world  # noqa: F401
from support.torch_functions import CASES, outcome_of
from support.torch_functions_page import cells_of_page

RANKS = (2,)
SAID = {cells[0].strip("`"): cells[1] for cells in cells_of_page()}


@pytest.mark.parametrize("name", CASES)
def test_what_the_page_says(name):
    outcomes = WORLD.allgather(outcome_of(CASES[name], torch, dist, RANK, SIZE))
    if any(outcome.startswith("not in this torch") for outcome in outcomes):
        pytest.skip(outcomes[0])
    if SAID[name] == "works":
        assert outcomes == ["works"] * SIZE
    else:
        assert all(outcome.startswith("refused by ") for outcome in outcomes)
