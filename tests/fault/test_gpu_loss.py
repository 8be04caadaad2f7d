"""A rank that dies while GPU tensors are under way: the others learn of it, by each route."""

import pytest
from support import fake_gpu
from support.gpu import HOST_IDS, ROUTES, count_gpus, variants
from support.job import run_job, survivors_stay
from support.rest import ENVIRONMENT

SCRIPT = """
    import os, signal, sys
    import numpy as np
    import hvdlite as hvd
    from support.driver_arrays import DriverArray
    from support.gpu import pass_for_other_hosts

    pass_for_other_hosts()
    hvd.init()
    gpu = hvd.local_rank() % int(os.environ["GPUS"])
    arrays = [DriverArray.of(np.full(100_000, hvd.rank() + 1.0, np.float32), device=gpu) for _ in range(4)]
    step = 0
    try:
        while True:
            if step == 5 and hvd.rank() == 1:
                if os.environ["HOW"] == "raise":
                    raise ValueError("no such file: data.bin")
                os.kill(os.getpid(), signal.SIGKILL)
            handles = [hvd.allreduce_async(array, op=hvd.Sum, name=f"step.{place}") for place, array in enumerate(arrays)]
            for handle in handles:
                hvd.synchronize(handle)
            step += 1
    except hvd.HorovodInternalError as error:
        print(f"lost in step {step}: {error}", flush=True)
        hvd.shutdown()
        sys.exit(3)
"""


def ways():
    for variant in variants(2, ROUTES, ("fakes",)):
        yield pytest.param(variant, id=variant.label, marks=[getattr(pytest.mark, name) for name in variant.markers])


@pytest.mark.parametrize("how", ["raise", "kill"])
@pytest.mark.parametrize("variant", list(ways()))
def test_the_others_end(variant, how, pytestconfig):
    if variant.impossible:
        pytest.skip(variant.impossible)
    if variant.environment["HVDLITE_GPU_ROUTE"] not in pytestconfig.getoption("--routes"):
        pytest.skip("another route was asked for")
    gpus = "2" if "fakes" in variant.label else str(count_gpus()[0])
    expect_loss(how, {**variant.environment, "GPUS": gpus})


def test_through_nccl_on_one_gpu():
    """Where NCCL is too old to let ranks share a GPU, they pass for ranks of other hosts, as on the machine with one GPU."""
    reason = fake_gpu.missing()
    if reason:
        pytest.skip(reason)
    expect_loss("raise", {**fake_gpu.environment(gpus=1), "HVDLITE_GPU_ROUTE": "nccl", HOST_IDS: "1", "GPUS": "1"})


def expect_loss(how, environment):
    job = run_job(SCRIPT, 2, env={**environment, **ENVIRONMENT, "HOW": how}, mpirun_args=survivors_stay())
    assert not job.timed_out, job.report()
    assert job.returncode != 0
    if how == "raise":
        assert "ValueError: no such file: data.bin" in job.stdout[0] + job.stderr[0], job.report()
        assert "lost in step" in job.stdout[0], job.report()
