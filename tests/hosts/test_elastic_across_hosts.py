"""Elastic training on several hosts: ranks die, also all of a host, a spare joins, and a host's loss leaves a checkpoint."""

import re

import pytest
from support.hosts import ULFM_OPTIONS, emulated_hosts
from support.job import launcher_has_ulfm

PROGRAM = """
    import os, signal
    import numpy as np
    import hvdlite as hvd
    from hvdlite import elastic

    DEATHS = {3: 4, 0: 6, 2: 9}  # by first rank, the step; ranks 2 and 3 are the second host's

    hvd.init()
    first = hvd.rank()
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, seen=[])

    @elastic.run
    def train(state):
        while state.step < 9:
            if DEATHS.get(first) == state.step:
                os.kill(os.getpid(), signal.SIGKILL)
            mean = hvd.allreduce(np.full(30_000, state.step + hvd.rank() - (hvd.size() - 1) / 2), name="step")
            state.seen.append(float(mean[-1]))
            state.step += 1
            state.commit()
        if DEATHS.get(first) == state.step:
            os.kill(os.getpid(), signal.SIGKILL)
        return state.seen

    assert train(state) == [float(step) for step in range(9)]
    print("done", hvd.rank(), hvd.size(), elastic.recovery.RUNTIME.recoveries)
"""


pytestmark = pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")


# Open MPI may crash a rank while other ranks die (docs/elastic.md). Frame 0 is the signal's handler.
CRASH_OF_MPI = re.compile(r"Segmentation fault.*?\[ 1\] \S*/libmpi\.so", re.DOTALL)


def test_ranks_of_both_hosts_die():
    """A job that loses one more rank to a crash of Open MPI itself says nothing, and is repeated."""
    for _ in range(3):
        with emulated_hosts(2) as hosts:
            job = hosts.run([2, 2], PROGRAM, mpirun_args=ULFM_OPTIONS)
        if not any(CRASH_OF_MPI.search(text) for text in job.stderr.values()):
            break
    assert job.returncode == 0, job.report()
    assert job.stdout[1] == "done 0 1 3\n", job.report()


WITH_A_SPARE = """
    import os, signal
    import numpy as np
    import hvdlite as hvd
    from hvdlite import elastic

    WORLD = int(os.environ["OMPI_COMM_WORLD_RANK"])
    hvd.init()
    print("init", hvd.rank(), hvd.size(), hvd.local_rank(), flush=True)
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, seen=[])

    @elastic.run
    def train(state):
        while state.step < 6:
            if (WORLD, state.step) == (0, 3):
                os.kill(os.getpid(), signal.SIGKILL)
            mean = hvd.allreduce(np.full(30_000, state.step + hvd.rank() - (hvd.size() - 1) / 2), name="step")
            state.seen.append((float(mean[-1]), hvd.size()))
            state.step += 1
            state.commit()
        return state.seen

    assert train(state) == [(float(step), 3) for step in range(6)], state.seen
    print("done", hvd.rank(), hvd.size(), flush=True)
"""


def test_a_spare_of_another_host_takes_the_place_of_a_rank():
    with emulated_hosts(2) as hosts:
        env = {"HVDLITE_ELASTIC_SPARES": "1", "HVDLITE_ELASTIC_MIN_RANKS": "3"}
        job = hosts.run([1, 3], WITH_A_SPARE, mpirun_args=ULFM_OPTIONS, env=env)
    assert job.returncode == 0, job.report()
    # The second host had ranks 1 and 2, on its local ranks 0 and 1.
    assert job.stdout[1] == "init 1 3 0\ndone 0 3\n", job.report()
    assert job.stdout[3] == "init 2 3 2\ndone 2 3\n", job.report()


CHECKPOINTS = """
    import os
    import torch
    import hvdlite.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    PATH = "/dev/shm/state.pt"  # each host has a /dev/shm of its own
    data = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 48).reshape(12, 4))

    def train(epochs):
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), shard=True)
        job = hvd.elastic.Job(model=model, optimizer=optimizer, batch_size=4, checkpoint=PATH, save_every=3)
        first = job.position
        for x, in job.batches(data, epochs):
            with job.step():
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return first, job.position

    print(train(2), os.path.exists(PATH), flush=True)
    if hvd.rank() == 0:
        os.remove(PATH)  # its host was lost, and another one took its place
    print(train(3), os.path.exists(PATH), flush=True)
"""


@pytest.mark.slow
def test_the_loss_of_a_host_leaves_a_checkpoint_on_another_one():
    with emulated_hosts(3) as hosts:
        job = hosts.run(1, CHECKPOINTS, mpirun_args=ULFM_OPTIONS)
    assert job.returncode == 0, job.report()
    for rank in range(3):
        exists = rank < 2
        assert job.stdout[rank] == f"(0, 6) {exists}\n(6, 9) {exists}\n", job.report()
