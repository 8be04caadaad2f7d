"""A rank is lost in elastic training: the others get their last commit back, and the reason why they cannot go on."""

from support.job import run_job

SCRIPT = """
    import sys
    import numpy as np
    import hvdlite as hvd
    from hvdlite import elastic

    hvd.init()
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, total=[float(hvd.rank())])

    @elastic.run
    def train(state):
        assert state.total == [0.0]  # rank 0's
        for state.step in range(10):
            state.total.append(float(hvd.allreduce(np.float64(hvd.rank() + state.step), op=hvd.Sum, name="step")))
            if state.step == 5 and hvd.rank() == 1:
                sys.exit(0)  # with no error, so that mpirun leaves the others alone
            if state.step % 2 == 0:
                state.commit()

    try:
        train(state)
    except hvd.UnsupportedError as error:
        print("restored", state.step, state.total, flush=True)
        print("said", error, flush=True)
        print("cause", type(error.__cause__).__name__, flush=True)
"""


def test_survivors_have_their_last_commit():
    result = run_job(SCRIPT, 3)
    assert result.returncode == 0, result.report()
    for rank in (0, 2):
        # Steps 0 to 4 are committed, step 5 went well and step 6 had no rank 1 any more.
        assert "restored 4 [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]" in result.stdout[rank], result.report()
        assert "but neither with other hosts nor without a rank that has left on its own" in result.stdout[rank], (
            result.report()
        )
        assert "has left" in result.stdout[rank], result.report()
        assert "cause AbortedError" in result.stdout[rank], result.report()
    assert result.stdout[1] == "", result.report()
