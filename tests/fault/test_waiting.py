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
    micros = re.search(r"([\d.]+) us", result.stdout[0])
    assert micros, result.report()
    assert float(micros.group(1)) <= 60, result.report()  # of processor time; more than 100 if they spin


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
