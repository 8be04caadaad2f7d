"""What a wait costs and how it ends: processor time, Ctrl-C, deadlines of deadlock detection, forked children."""

import re

import pytest
from support.job import run_job
from support.limits import limit


@pytest.mark.measures
@pytest.mark.parametrize("binding", ["core", "none"])
def test_an_idle_engine_and_a_wait_for_a_straggler_use_no_processor(binding):
    result = run_job(
        """
        import time
        import numpy as np
        import hvdlite as hvd

        hvd.init()
        hvd.allreduce(np.ones(1000), name="x")
        time.sleep(0.2)
        for what in ("idle", "waiting"):
            start, cpu = time.perf_counter(), time.process_time()
            if what == "idle" or hvd.rank() == 0:
                time.sleep(5)
            if what == "waiting":
                hvd.allreduce(np.ones(1000), name="x")
            share = (time.process_time() - cpu) / (time.perf_counter() - start)
            print(f"{what} {100 * share:.3f} %", flush=True)
        """,
        2,
        mpirun_args=["--bind-to", binding],
    )
    assert result.returncode == 0, result.report()
    for rank in (0, 1):
        shares = dict(re.findall(r"(idle|waiting) ([\d.]+) %", result.stdout[rank]))
        assert set(shares) == {"idle", "waiting"}
        assert all(float(share) <= 2.0 for share in shares.values()), result.report()


@pytest.mark.measures
def test_a_rank_that_is_stopped_with_the_lock_of_a_ledger_costs_the_others_no_processor():
    """Rank 0 takes the lock by hand, where it lies: in the window, behind its head, one line after the serial number."""
    result = run_job(
        """
        import ctypes, time
        import numpy as np
        from mpi4py import MPI
        import hvdlite as hvd

        hvd.init()
        hvd.allreduce(np.ones(1000), name="x")
        MPI.COMM_WORLD.Barrier()
        if hvd.rank() == 0:
            with open("/proc/self/maps") as maps:
                window = next(int(line.split("-")[0], 16) for line in maps if "hvdlite-window" in line)
            serial, lock = (ctypes.c_uint32.from_address(window + 128 + at) for at in (0, 64))
            assert (serial.value, lock.value) == (1, 0)
            lock.value = 1
        MPI.COMM_WORLD.Barrier()
        start, cpu = time.perf_counter(), time.process_time()
        if hvd.rank() == 0:
            time.sleep(4)
            lock.value = 0
        hvd.allreduce(np.ones(1000), name="x")
        took = time.perf_counter() - start
        assert took > 3.9
        print(f"waiting {100 * (time.process_time() - cpu) / took:.3f} %", flush=True)
        """,
        2,
    )
    assert result.returncode == 0, result.report()
    (share,) = re.findall(r"waiting ([\d.]+) %", result.stdout[1])
    assert float(share) <= 5.0, result.report()


def test_ctrl_c_interrupts_a_wait_within_half_a_second():
    result = run_job(
        """
        import os, signal, threading, time
        import numpy as np
        from mpi4py import MPI
        import hvdlite as hvd

        hvd.init()
        if hvd.rank() == 0:
            sent = []
            def interrupt():
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
            try:
                threading.Timer(0.7, interrupt).start()
                hvd.allreduce(np.ones(3), name="never")
            except KeyboardInterrupt:
                print(f"interrupted after {time.monotonic() - sent[0]:.3f} s", flush=True)
        # The other rank does nothing before.
        MPI.COMM_WORLD.Barrier()
        hvd.shutdown()
        """,
        2,
    )
    delay = re.search(r"interrupted after ([\d.]+) s", result.stdout[0])
    assert delay, result.report()
    assert float(delay.group(1)) <= limit(0.5), result.report()


def test_a_forked_child_is_inert_and_says_so():
    result = run_job(
        """
        import multiprocessing, os, sys
        import numpy as np
        import hvdlite as hvd

        def work(queue):
            try:
                hvd.allreduce(np.ones(2), name="child")
            except hvd.NotInitializedError as error:
                queue.put(str(error))

        hvd.init()
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        message = queue.get(timeout=60)
        child.join(60)
        if os.fork() == 0:
            sys.exit(0)  # runs atexit handlers in the child
        os.wait()
        assert child.exitcode == 0
        total = hvd.allreduce(np.full(2, hvd.rank() + 1.0), name="parent", op=hvd.Sum)
        print(total.tolist(), message, flush=True)
        """,
        2,
    )
    assert result.returncode == 0, result.report()
    for rank in (0, 1):
        assert "[3.0, 3.0]" in result.stdout[rank], result.report()
        assert "fork" in result.stdout[rank], result.report()


@pytest.mark.measures
def test_four_ranks_on_few_cores_do_not_collapse():
    """With more ranks than cores nobody spins another off its core, which would cost it a time slice."""
    result = run_job(
        """
        import time
        import numpy as np
        import hvdlite as hvd

        hvd.init()
        value = np.full(16, hvd.rank(), np.float64)
        used = []
        for batch in range(20):
            start = time.process_time()
            for _ in range(50):
                hvd.allreduce_(value * 0 + hvd.rank(), name="x")
            used.append((time.process_time() - start) / 50)
        print(f"{min(used) * 1e6:.1f} us", flush=True)
        """,
        4,
        mpirun_args=["--bind-to", "none"],
    )
    assert result.returncode == 0, result.report()
    micros = sorted(float(us) for output in result.stdout.values() for us in re.findall(r"([\d.]+) us", output))
    assert len(micros) == 4, result.report()
    # Of processor time; more than 100 if they spin. The system may put three ranks on one of two cores: then the fourth takes
    # all of the other, which nobody else wants.
    assert micros[2] <= 60, result.report()


@pytest.mark.measures
def test_four_ranks_on_few_cores_take_about_as_long_as_mpi():
    """Of the rounds in which hvdlite and Open MPI have their turn, the median of the ratios (docs/benchmarks.md)."""
    limits = {4: 3.0, 16 << 10: 1.5, 64 << 10: 1.5, 1 << 20: 1.5}
    for _ in range(5):  # what else runs on the machine may hit one of the two for all of a job
        result = run_job(
            f"""
            import statistics, time
            import numpy as np
            from mpi4py import MPI
            import hvdlite as hvd

            def seconds(reduce, calls):
                array.fill(hvd.rank())
                MPI.COMM_WORLD.Barrier()
                start = time.perf_counter()
                for _ in range(calls):
                    reduce()
                return MPI.COMM_WORLD.allreduce(time.perf_counter() - start, MPI.MAX)

            hvd.init()
            for nbytes in {list(limits)}:
                array, calls = np.empty(nbytes // 4, np.float32), 10 if nbytes >= 1 << 20 else 50
                ratios = []
                for _ in range(15):
                    ours = seconds(lambda: hvd.allreduce_(array, op=hvd.Average), calls)
                    assert array[0] == array[-1] == 1.5
                    ratios.append(ours / seconds(lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array), calls))
                print(nbytes, statistics.median(ratios), flush=True)
            """,
            4,
            mpirun_args=["--bind-to", "none"],
        )
        assert result.returncode == 0, result.report()
        ratios = {int(nbytes): float(ratio) for nbytes, ratio in map(str.split, result.stdout[0].splitlines())}
        assert ratios.keys() == limits.keys()
        if all(ratios[nbytes] <= most for nbytes, most in limits.items()):
            return
    pytest.fail(f"too many times as long as MPI: {ratios}")


@pytest.mark.measures
def test_two_ranks_that_were_put_on_one_core_give_it_to_each_other():
    """As the scheduler may do with ranks that are not bound: neither spins while the other has work to do."""
    result = run_job(
        """
        import os, time
        import numpy as np
        import hvdlite as hvd

        hvd.init()
        value = np.full(1, hvd.rank(), np.float32)
        hvd.allreduce(value, name="x", op=hvd.Sum)
        one = min(os.sched_getaffinity(0)) if hvd.rank() == 0 else None
        one = hvd.broadcast_object(one, 0)
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {one})
        used = []
        for batch in range(10):
            start = time.process_time()
            for _ in range(200):
                assert hvd.allreduce(value, name="x", op=hvd.Sum)[0] == 1
            used.append((time.process_time() - start) / 200)
        print(f"{min(used) * 1e6:.1f} us", flush=True)
        """,
        2,
        mpirun_args=["--bind-to", "none"],
    )
    assert result.returncode == 0, result.report()
    micros = re.search(r"([\d.]+) us", result.stdout[0])
    assert micros, result.report()
    assert float(micros.group(1)) <= 60, result.report()


@pytest.mark.measures
def test_a_blocking_four_byte_allreduce_takes_tens_of_microseconds():
    """Through the whole of the engine, negotiation included; the best of several batches, for the machine is shared."""
    result = run_job(
        """
        import statistics, time
        import numpy as np
        import hvdlite as hvd

        hvd.init()
        value = np.full(1, hvd.rank(), np.float32)
        medians = []
        for batch in range(200):  # each shorter than a time slice
            times = []
            for _ in range(20):
                start = time.perf_counter()
                total = hvd.allreduce(value, name="x", op=hvd.Sum)
                times.append(time.perf_counter() - start)
                assert total[0] == 1
            medians.append(statistics.median(times))
        print(f"{min(medians) * 1e6:.1f} us", flush=True)
        """,
        2,
        mpirun_args=["--bind-to", "core"],
    )
    assert result.returncode == 0, result.report()
    micros = re.search(r"([\d.]+) us", result.stdout[0])
    assert micros, result.report()
    assert float(micros.group(1)) <= 50, result.report()
