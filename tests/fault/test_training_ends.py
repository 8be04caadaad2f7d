"""A rank that raises, or runs out of data, in the middle of a training: what backward() of the others says."""

import re

import pytest
from support.job import launcher_is_hydra, run_job, survivors_stay

torch = pytest.importorskip("torch")

SCRIPT = """
    import sys
    import torch
    from mpi4py import MPI
    import hvdlite.torch as hvd

    hvd.init()
    survivors = MPI.COMM_WORLD.Split(hvd.rank() == 1)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(6):
        if step == 3:
            MPI.COMM_WORLD.Barrier()  # all have finished step 2
        if hvd.rank() == 1 and step == 3:
            if sys.argv[1] == "raise":
                raise ValueError("bad batch 17")
            break
        optimizer.zero_grad()
        loss = model(torch.full((3, 4), 1.0 + hvd.rank() + step)).square().mean()
        try:
            loss.backward()
        except hvd.HorovodInternalError as error:
            print(f"step {step}: {type(error).__name__}: {error}", flush=True)
            survivors.Barrier()  # or the second would hear that the first has left
            break
        optimizer.step()
    else:
        print("not noticed")
"""


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("raise", r"step 3: PeerLostError: rank 1 .* raised ValueError: bad batch 17"),
        ("run out", r"step 3: AbortedError: .*rank 1 .* has left"),
    ],
)
def test_backward_names_the_cause(ending, expected):
    if launcher_is_hydra() and ending == "raise":
        pytest.skip("MPICH's mpirun ends the survivors at once")
    result = run_job(SCRIPT, 3, args=[ending], mpirun_args=survivors_stay())
    assert not result.timed_out, result.report()
    for rank in (0, 2):
        assert "Horovod has been shut down" in result.stdout[rank], result.report()
        assert re.search(expected, result.stdout[rank]), result.report()
