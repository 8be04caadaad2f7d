"""What holds on one host holds on several: files of tests/parallel, and what an allreduce costs on slow links."""

from pathlib import Path

import pytest
from support.hosts import emulated_hosts
from support.parallel import run_in_step
from support.timed_allreduce import timed_allreduce

PARALLEL = Path(__file__).parents[1] / "parallel"
FILES = ("grouped", "allgather", "broadcast", "reducescatter", "alltoall", "process_sets")
MIB = 1 << 20


def test_files_of_parallel_tests():
    with emulated_hosts(2) as hosts:
        each, options = hosts.placement([2, 1])
        files = [PARALLEL / f"test_{name}.py" for name in FILES]
        run_in_step(files, sum(each), 900.0, hosts=hosts, mpirun_args=options)


def test_all_forced_algorithms_between_hosts_agree():
    program = """
        import os
        import numpy as np
        import hvdlite as hvd

        for algorithm in ("auto", "hierarchical", "ring", "direct", "recursive_doubling"):
            os.environ["HVDLITE_ALLREDUCE_ALGORITHM"] = algorithm
            hvd.init()
            size = hvd.size()
            for count in (1, 5_000, 700_001):
                value = np.arange(count, dtype=np.float32) % 61 + hvd.rank()
                total = hvd.allreduce(value, name=f"a{count}", op=hvd.Sum)
                assert np.array_equal(total, size * (np.arange(count) % 61) + size * (size - 1) // 2), algorithm
            hvd.shutdown()
        print("ok")
    """
    with emulated_hosts(3) as hosts:
        job = hosts.run([2, 1, 1], program)
    assert job.returncode == 0, job.report()
    assert list(job.stdout.values()) == ["ok\n"] * 4, job.report()


def test_a_program_may_end_mpi_itself():
    """The signs of life between hosts (hvdlite/other_hosts.py) must be over by then."""
    program = """
        import time
        from mpi4py import MPI
        import hvdlite as hvd

        hvd.init()
        hvd.shutdown()
        time.sleep(0.3 * MPI.COMM_WORLD.rank)  # others are still on their way
        MPI.Finalize()
        print("fine")
    """
    with emulated_hosts(2) as hosts:
        job = hosts.run(1, program, env={"HVDLITE_PEER_TIMEOUT": "0.1"})
    assert job.returncode == 0, job.report()
    assert list(job.stdout.values()) == ["fine\n"] * 2, job.report()
    assert list(job.stderr.values()) == [""] * 2, job.report()


def test_ranks_of_a_host_map_one_window_of_their_own():
    program = """
        import re
        import hvdlite as hvd
        from mpi4py import MPI

        hvd.init()
        windows = {line.split()[4] for line in open("/proc/self/maps") if "hvdlite-window" in line}
        assert len(windows) == 1, windows
        print(MPI.Get_processor_name(), windows.pop())
    """
    with emulated_hosts(2) as hosts:
        job = hosts.run([2, 1], program)
    assert job.returncode == 0, job.report()
    first, second, third = (job.stdout[rank].split() for rank in range(3))
    assert first == second, "two ranks of one host"
    assert first[1] != third[1], "ranks of two hosts"


@pytest.mark.measures
def test_the_wire_carries_little_and_is_used_well():
    """4 MiB of two hosts of two ranks at 1 Gbit/s and 1 ms: the wire alone takes 34 ms, Open MPI about 200, hvdlite 40."""
    with emulated_hosts(2, rate_mbit=1000, delay_us=1000) as hosts:
        for _ in range(8):  # at times the machine's cores are too busy to carry 4 ranks and the wire
            (timing,) = timed_allreduce(hosts, 2, [4 * MIB], repeats=5)
            assert max(timing.sent) < 1.03 * 4 * MIB
            assert min(timing.hvdlite) > 0.0335, "faster than the wire: the emulation does not work"
            if min(timing.hvdlite) < min(0.045, 0.5 * min(timing.mpi)):
                break
    assert min(timing.hvdlite) < 0.5 * min(timing.mpi), timing
    assert min(timing.hvdlite) <= 0.045, timing
