"""Large messages where a seccomp filter forbids a rank to read the other's memory: they pass through the ring in shared memory,
in both directions at once, and a death or a deadlock in the middle ends them as elsewhere.
"""

import platform

import pytest
from support.job import launcher_is_hydra, run_job, survivors_stay

# process_vm_readv fails with EPERM: load the number of the call, compare, refuse, allow.
FORBID = """
    import ctypes, errno, os, platform, struct

    def forbid_reading():
        number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
        steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | errno.EPERM), (0x06, 0, 0, 0x7FFF0000)]
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
        assert libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())  # PR_SET_SECCOMP
"""
SCRIPT = """
    import numpy as np
    import hvdlite as hvd

    forbid_reading()
    hvd.init()
    rank, other = hvd.rank(), 1 - hvd.rank()
    mine, got = np.arange(1_000_003.0) + rank, np.zeros(1_000_003)
    for _ in range(3):
        got[:] = 0
        both = hvd.batch([hvd.P2POp(hvd.isend, mine, other), hvd.P2POp(hvd.irecv, got, other)])
        both.synchronize()
        assert np.array_equal(got, np.arange(1_000_003.0) + other)
    try:
        hvd.send(mine, other)  # both send first
    except hvd.HorovodInternalError as error:
        assert "deadlock" in str(error), error
        print("deadlock", flush=True)
    hvd.barrier()
    posted = hvd.irecv(got, 1, tag=1) if rank == 0 else hvd.isend(mine, 0, tag=1)
    if rank == 1:
        os.kill(os.getpid(), 9)  # a part of the message is in the ring, at most
    try:
        posted.synchronize()
        hvd.recv(got, 1)
    except hvd.PeerLostError as error:
        print(f"rank {rank} was told: {error}", flush=True)
    os._exit(0)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the filter knows the calls of x86-64 and arm64")
def test_messages_between_memories_that_may_not_be_read():
    if launcher_is_hydra():
        pytest.skip("MPICH's mpirun ends the survivors at once")
    job = run_job(FORBID + SCRIPT, 2, mpirun_args=survivors_stay())
    assert "deadlock" in job.stdout[0], job.report()
    assert "rank 0 was told: rank 1 (host" in job.stdout[0], job.report()
    said = "this process may not read the memory of rank 1 (process_vm_readv: Operation not permitted)"
    assert job.stderr[0].count(said) == 1, job.report()
