"""A rank dies while another sends to it or waits for what it sends: that one is told who died, whatever it waits for."""

import pytest
from support.job import launcher_is_hydra, run_job, survivors_stay

SCRIPT = """
    import os
    import numpy as np
    import hvdlite as hvd

    hvd.init()
    rank, way = hvd.rank(), os.environ["HVDTEST_WAY"]
    got = np.empty(100_000)
    posted = hvd.irecv(got, 1, tag=1)  # of which rank 1 sends a part, at most
    hvd.barrier()
    if rank == 1:
        if way == "sends":
            hvd.isend(np.ones(100_000), 0, tag=1)
        os.kill(os.getpid(), 9)
    waits = {
        "sends": lambda: posted.synchronize(),
        "send": lambda: hvd.send(np.ones(100_000), 1),
        "recv": lambda: hvd.recv(got, 1),
        "recv from any": lambda: hvd.recv(got),
        "a flood": lambda: [hvd.isend(np.ones(1000), 1) for _ in range(300)][-1].synchronize(),
    }
    try:
        waits[way]()
        hvd.recv(got, 1)
    except hvd.PeerLostError as error:
        print(f"rank {rank} was told: {error}", flush=True)
    os._exit(0)
"""


@pytest.mark.parametrize("way", ["sends", "send", "recv", "recv from any", "a flood"])
def test_the_other_names_the_dead(way):
    if launcher_is_hydra():
        pytest.skip("MPICH's mpirun ends the survivors at once")
    job = run_job(SCRIPT, 2, env={"HVDTEST_WAY": way}, mpirun_args=survivors_stay())
    assert "rank 0 was told: rank 1 (host" in job.stdout[0], job.report()
    assert "ended without telling the other ranks" in job.stdout[0], job.report()
