"""The MPI transport at its edges: split messages, every kind of shared page and none, binding, unusual communicators."""

import pytest
from support.job import run_job
from support.rest import ENVIRONMENT

BODY = """
    import numpy as np
    import hvdlite as hvd

    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    for step in range(3):
        for count in (1, 1000, 99_991, 300_007):
            value = np.arange(count, dtype=np.float64) * (rank + 1)
            total = hvd.allreduce(value, name=f"a{count}", op=hvd.Sum)
            assert np.array_equal(total, np.arange(count) * (size * (size + 1) / 2.0))
        rows = hvd.allgather(np.full((10_000 * (rank + 1), 3), rank, np.int32), name="g")
        assert np.array_equal(rows[:, 0], np.repeat(np.arange(size), 10_000 * np.arange(1, size + 1)))
        for root in range(size):
            same = hvd.broadcast(np.full(300_000, rank, np.float32), root, name=f"b{root}")
            assert (same == root).all()
    names = [f"{'long/' * 60}{i}" for i in range(400)]
    handles = [hvd.allreduce_async(np.full(2, rank + i), name=name, op=hvd.Sum) for i, name in enumerate(names)]
    for i, handle in enumerate(handles):
        assert (hvd.synchronize(handle) == size * i + size * (size - 1) // 2).all()
    print("ok", flush=True)
"""


@pytest.mark.parametrize("limit", [1_000, 65_537])
def test_messages_larger_than_the_split_limit_arrive_whole(limit):
    # Ranks that share memory would send none of them.
    result = run_job(BODY, 3, env={"HVDLITE_MESSAGE_SPLIT_BYTES": str(limit), "HVDLITE_SHARED_MEMORY": "off"})
    assert result.returncode == 0, result.report()
    assert all("ok" in text for text in result.stdout.values()), result.report()


@pytest.mark.parametrize("kind", ["memfd", "shm", "off"])
@pytest.mark.parametrize("binding", ["core", "none"])
def test_every_kind_of_shared_page_and_none(kind, binding):
    result = run_job(BODY, 2, env={"HVDLITE_SHARED_MEMORY": kind}, mpirun_args=["--bind-to", binding])
    assert result.returncode == 0, result.report()
    assert all("ok" in text for text in result.stdout.values()), result.report()
    assert all(text == "" for text in result.stderr.values()), result.report()


def test_without_a_shared_page_waiting_still_costs_little():
    """Who waits sleeps for a share of the time waited, up to 5 ms."""
    result = run_job(
        """
        import threading
        import numpy as np
        from mpi4py import MPI
        import hvdlite as hvd
        from hvdlite.runtime import RUNTIME
        from support.rest import rests_with

        hvd.init()
        hvd.allreduce(np.ones(10), name="x")
        if hvd.rank() == 0:
            MPI.COMM_WORLD.recv()
            hvd.allreduce(np.ones(10), name="x")
        else:
            waiter = threading.Thread(target=hvd.allreduce, args=(np.ones(10),), kwargs={"name": "x"})
            waiter.start()
            assert rests_with(waiter, RUNTIME.engine, 2_000)
            MPI.COMM_WORLD.send(None, 0)
            waiter.join()
        print("rested", flush=True)
        """,
        2,
        env={**ENVIRONMENT, "HVDLITE_SHARED_MEMORY": "off"},
    )
    assert result.returncode == 0, result.report()
    assert result.stdout == {0: "rested\n", 1: "rested\n"}, result.report()


def test_init_on_a_list_of_ranks_a_communicator_and_again_after_shutdown():
    result = run_job(
        """
        import numpy as np
        from mpi4py import MPI
        import hvdlite as hvd

        world = MPI.COMM_WORLD
        for turn in range(3):
            hvd.init()
            assert (hvd.rank(), hvd.size()) == (world.rank, world.size)
            assert (hvd.allreduce(np.full(2, world.rank), name="x", op=hvd.Sum) == 3).all()
            hvd.shutdown()
            assert not hvd.is_initialized()
        if world.rank > 0:
            hvd.init([1, 2])
            assert (hvd.rank(), hvd.size()) == (world.rank - 1, 2)
            assert (hvd.allreduce(np.full(2, world.rank), name="x", op=hvd.Sum) == 3).all()
            hvd.shutdown()
        hvd.init()  # with a rank that took no part in the job before
        assert (hvd.allreduce(np.full(2, world.rank), name="x", op=hvd.Sum) == 3).all()
        hvd.shutdown()
        reversed_world = world.Split(0, -world.rank)
        hvd.init(reversed_world)
        assert hvd.rank() == world.size - 1 - world.rank
        assert (hvd.allreduce(np.full(2, world.rank), name="x", op=hvd.Max) == 2).all()
        """,
        3,
    )
    assert result.returncode == 0, result.report()
