"""What holds on one host holds on several: files of tests/parallel, and what an allreduce sends."""

from pathlib import Path

from support.hosts import emulated_hosts
from support.parallel import run_in_step

PARALLEL = Path(__file__).parents[1] / "parallel"
FILES = ("grouped", "allgather", "broadcast", "reducescatter", "alltoall", "process_sets", "point_to_point")
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


def test_ranks_agree_without_the_coordinator_and_small_payloads_travel_along():
    program = """
        import sys

        import numpy as np
        import hvdlite as hvd
        from hvdlite.runtime import RUNTIME

        hvd.init()
        names = ("agreed_in_memory", "cache_hits", "cache_misses", "riding_ops", "data_bytes_sent")

        def reduce(count, step):
            value = np.arange(count, dtype=np.float32) * (hvd.rank() + 1) + step
            total = hvd.allreduce(value, name=f"x{count}", op=hvd.Sum)
            assert np.array_equal(total, np.arange(count, dtype=np.float32) * 6 + 3 * step)

        def gather(count, step):
            rows = hvd.allgather(np.full((count, 2), hvd.rank() + step, np.int32), name=f"g{count}")
            assert np.array_equal(rows[::count, 1], np.arange(3) + step)

        apart = bool(int(sys.argv[1]))  # each rank is on a host of its own
        for call in (reduce, gather):
            for count in (4, 4000, 80000):
                prepared = count == 4 or (apart and count == 4000)
                in_parts = call is reduce and count > 4  # the parts are gathered afterwards
                before = RUNTIME.engine.counters()
                for step in range(3):
                    call(count, step)
                after = RUNTIME.engine.counters()
                agreed, hits, misses, riding, sent = (after[name] - before[name] for name in names)
                assert (agreed, hits, misses, riding) == (3, 0, 0, 3 if prepared else 0), (agreed, hits, misses, riding)
                assert sent == 0 if prepared and not in_parts else sent > 0 or hvd.local_rank() > 0, sent
        print("ok")
    """
    for ranks in ([1, 1, 1], [2, 1]):
        with emulated_hosts(len(ranks)) as hosts:
            job = hosts.run(ranks, program, args=[str(int(len(ranks) == 3))])
        assert job.returncode == 0, job.report()
        assert list(job.stdout.values()) == ["ok\n"] * 3, job.report()


def test_a_program_may_end_mpi_itself():
    """The heartbeats between hosts (csrc/job/job_driver.h) must be over by then."""
    program = """
        import contextlib, os
        from pathlib import Path
        from mpi4py import MPI
        import hvdlite as hvd

        def kept_up():
            names = set()
            for name in Path("/proc/self/task").glob("*/comm"):
                with contextlib.suppress(OSError):  # a thread that has been joined leaves /proc a little later
                    names.add(name.read_text().strip())
            return "hvdlite-hosts" in names

        hvd.init()
        hvd.shutdown()
        while not kept_up():  # the thread names itself
            os.sched_yield()
        if MPI.COMM_WORLD.rank == 1:
            MPI.COMM_WORLD.recv()
        else:  # the other is still on its way
            MPI.COMM_WORLD.send(None, 1)
        MPI.Finalize()
        while kept_up():
            os.sched_yield()
        print("fine")
    """
    with emulated_hosts(2) as hosts:
        job = hosts.run(1, program)
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


def test_the_wire_carries_little():
    """Of 4 MiB on two hosts of two ranks each host sends one sum of its own, the half of it that the other lacks twice; with a
    codec the same as codes. These values are such that codes are exact.
    """
    program = f"""
        import numpy as np
        from mpi4py import MPI
        import hvdlite as hvd

        def sent_by_this_host():
            with open("/proc/self/net/dev") as table:
                line = next(line for line in table if line.strip().startswith("eth0:"))
            return int(line.split(":")[1].split()[8])

        hvd.init()
        rank, size, count, turns = hvd.rank(), hvd.size(), {MIB}, 10
        value = np.arange(count, dtype=np.float32) % 64 + rank
        wanted = size * (np.arange(count) % 64) + size * (size - 1) / 2
        steps = np.arange(count, dtype=np.float32) % 2
        eighth = hvd.Compression.int4(block=64)
        cases = ((value, wanted, None), ([3, 4, 2, 5][rank] * steps, 14 * steps, eighth))
        for value, wanted, codec in cases:
            for turn in range(2 + turns):
                if turn == 2:  # the first ones make connections
                    MPI.COMM_WORLD.Barrier()
                    before = sent_by_this_host()
                assert np.array_equal(hvd.allreduce(value, name="x", op=hvd.Sum, compression=codec), wanted)
            MPI.COMM_WORLD.Barrier()
            print((sent_by_this_host() - before) / turns)
    """
    with emulated_hosts(2) as hosts:
        job = hosts.run(2, program)
    assert job.returncode == 0, job.report()
    for text in job.stdout.values():
        plain, coded = map(float, text.split())
        assert plain < 1.03 * 4 * MIB, job.report()
        # Half a byte for each element, and a scale of four bytes for 64 of them.
        assert coded < 1.05 * (0.5 + 4 / 64) * MIB, job.report()
