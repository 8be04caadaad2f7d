"""The limits of elastic training: so many changes of the ranks, and so long a wait for a spare."""

import os

import pytest
from support.job import launcher_has_ulfm, run_job

pytestmark = pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")
ULFM = ("--with-ft", "ulfm")

TRAINS = """
    import os, signal, sys
    import numpy as np
    import hvdlite as hvd
    from hvdlite import elastic

    WORLD = int(os.environ["OMPI_COMM_WORLD_RANK"])  # this process's number in MPI

    hvd.init()
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    if WORLD == 2 and os.environ.get("HVDLITE_ELASTIC_SPARES"):
        open(sys.argv[1]).close()  # this spare waits at a pipe, and does not call its elastic function
        os._exit(0)

    @elastic.run
    def train(state):
        while state.step < 9:
            if (WORLD, state.step) in ((1, 3), (2, 5)):
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.allreduce(np.ones(2), name="step")
            state.step += 1
            state.commit()

    try:
        train(state)
    except hvd.UnsupportedError as error:
        print(state.step, error, flush=True)
        open(sys.argv[1], "w").close()
"""


def test_the_ranks_change_at_most_so_many_times(tmp_path):
    result = run_job(TRAINS, 4, args=[str(tmp_path / "end")], mpirun_args=ULFM, env={"HVDLITE_ELASTIC_RESET_LIMIT": "1"})
    for rank in (0, 3):
        assert result.stdout[rank].startswith("5 "), result.report()
        assert "the job has changed its ranks 1 times, and HVDLITE_ELASTIC_RESET_LIMIT=1" in result.stdout[rank]


def test_too_few_ranks_wait_only_so_long_for_a_spare(tmp_path):
    env = {"HVDLITE_ELASTIC_SPARES": "1", "HVDLITE_ELASTIC_MIN_RANKS": "2", "HVDLITE_ELASTIC_TIMEOUT": "0.5"}
    os.mkfifo(tmp_path / "end")
    result = run_job(TRAINS, 3, args=[str(tmp_path / "end")], mpirun_args=ULFM, env=env)
    text = "ranks left: 1, and HVDLITE_ELASTIC_MIN_RANKS=2 asks for more; no spare was ready in HVDLITE_ELASTIC_TIMEOUT=0.5 s"
    assert text in result.stdout[0], result.report()
