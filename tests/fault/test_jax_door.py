"""What a rank learns that waits inside a compiled JAX program while another one fails."""

import pytest
from support.job import run_job

pytest.importorskip("jax")

SCRIPT = """
    import jax
    import jax.numpy as jnp
    import hvdlite
    from hvdlite.jax import call, grouped_allreduce
    from hvdlite.requests import Kind
    from hvdlite.xla import Group, failure_in

    hvdlite.init()

    @jax.jit
    def step(x):
        return call([Group(Kind.ALLREDUCE, "gradients", [("float32", (3,))])], [x], alone={alone})[0]

    step(jnp.ones(3)).block_until_ready()
    if hvdlite.rank() == 1:
        raise ValueError("no more data")
    try:
        step(jnp.ones(3)).block_until_ready()
    except (RuntimeError, ValueError) as error:
        print("failed with", type(failure_in(error)).__name__, str(error).splitlines()[0], flush=True)
        raise
"""


@pytest.mark.parametrize("alone", [False, True])
def test_a_rank_that_raises_ends_the_wait_of_the_other(alone):
    job = run_job(SCRIPT.format(alone=alone), 2, env={"JAX_PLATFORMS": "cpu"}, timeout=120)
    assert not job.timed_out, job.report()
    assert job.returncode != 0
    assert "failed with PeerLostError" in job.stdout[0], job.report()
    assert "rank 1" in job.stdout[0]
    assert "raised ValueError: no more data" in job.stdout[0]
