"""Waiting for many operations at once: outcomes in order, groups as a whole, signals and shutdown meanwhile."""

import signal
import threading

import numpy as np
import pytest
from support.limits import DEADLINE, eventually, interrupted, waits_in_engine, when_waiting
from support.requests import address, allreduce
from support.thread_ranks import ABSENT, engines, in_threads, outcomes_of, run_ranks, run_request

from hvdlite._engine import Work
from hvdlite.errors import AbortedError


def test_waiting_for_many_tells_them_apart():
    def body(rank):
        arrays = [np.full(3 + (index == 2) * rank.rank, rank.rank, np.float32) for index in range(5)]
        handles = [rank.engine.submit([allreduce(f"w{index}", array)]) for index, array in enumerate(arrays)]
        order = [3, 2, 0, 4, 1]
        outcomes = outcomes_of(rank.engine, [handles[index] for index in order])
        assert "'w2'" in str(outcomes.pop(1))
        assert outcomes == [2, 2, 2, 2]
        assert all(handle.poll() for handle in handles)
        assert [handle.results() for handle in handles] == [[None]] * 5  # of which the outcomes were taken

    run_ranks(2, body)


def test_nothing_to_wait_for():
    with engines(1) as ranks:
        engine = ranks[0].engine
        assert outcomes_of(engine, []) == []
        with pytest.raises(TypeError, match="no work"):
            engine.wait_many([5], [])


def test_works_of_several_engines_are_not_waited_for_together():
    with engines(2) as ranks:
        works = [rank.engine.submit([allreduce("x", np.ones(2))]) for rank in ranks]
        with pytest.raises(ValueError, match="several engines"):
            ranks[0].engine.wait_many(works, [])
        in_threads(ranks, lambda rank: works[rank.rank].result())


def test_a_prepared_handle_is_polled_as_a_whole_and_not_waited_for_as_one():
    polled = threading.Event()

    def body(rank):
        arrays = [np.ones(1, np.float32) for _ in range(2)]
        group = rank.engine.prepare([allreduce(f"q{index}", array) for index, array in enumerate(arrays)])
        if rank.rank:
            run_request(rank.engine, allreduce("q0", arrays[0]))
            run_request(rank.engine, allreduce("between", np.ones(1)))
            polled.wait()
            run_request(rank.engine, allreduce("q1", arrays[1]))
            return
        handle = rank.engine.submit_prepared(group, [address(array) for array in arrays])
        run_request(rank.engine, allreduce("between", np.ones(1)))
        half_done = handle.poll()
        polled.set()
        assert not half_done
        while not handle.poll():
            pass
        with pytest.raises(ValueError, match="of one operation"):
            handle.result()
        assert [result.contributors for result in handle.results()] == [2, 2]

    run_ranks(2, body)


def test_ctrl_c_interrupts_waiting_for_many_and_leaves_all_handles():
    arrays = [[np.full(2, rank + index + 1.0) for index in range(4)] for rank in range(2)]
    requests = [[allreduce(f"k{index}", array) for index, array in enumerate(mine)] for mine in arrays]
    with engines(2) as ranks:
        first, second = (rank.engine for rank in ranks)
        handles = [first.submit(requests[0][:2])]
        handles.append(first.submit_prepared(first.prepare(requests[0][2:]), [request[4] for request in requests[0][2:]]))
        done = [second.submit(requests[1][:1])]  # the first of them ends, the others do not
        interrupted(lambda: outcomes_of(first, handles))
        done.append(second.submit(requests[1][1:]))
        in_threads(ranks, lambda rank: outcomes_of(rank.engine, done if rank.rank else handles))
    for index in range(4):
        assert (arrays[0][index] == 2 * index + 3).all()


def test_ctrl_c_that_comes_while_the_last_operation_ends_loses_no_outcome():
    """Python would run the handler as soon as the call returns, between the wait and whatever the caller does with it."""

    def handler(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread()
    try:
        with engines(2) as ranks:
            first, second = (rank.engine for rank in ranks)
            arrays = [np.ones(2), np.ones(2)]
            for step in range(6):
                handle = first.submit([allreduce(f"e{step}", arrays[0])])

                def other(step=step):
                    # The signal comes within the slice in which the operation ends.
                    assert eventually(lambda: waits_in_engine(main.native_id))
                    signal.pthread_kill(main.ident, signal.SIGUSR1)
                    run_request(second, allreduce(f"e{step}", arrays[1]))

                thread = threading.Thread(target=other)

                ways = (Work.wait, Work.result, lambda work: outcomes_of(first, work))

                def waits(thread=thread, handle=handle, wait=ways[step % 3]):
                    thread.start()
                    wait(handle)

                with pytest.raises(KeyboardInterrupt):
                    waits()
                thread.join()
                assert outcomes_of(first, [handle]) == [2]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_shutdown_ends_waiting_for_many():
    with engines(2) as ranks:
        array = np.ones(2, np.float32)
        handles = ranks[0].engine.submit([allreduce("never", array)])

        waits = threading.Event()

        def body(rank):
            if rank.rank:
                assert waits.wait(DEADLINE)
                rank.engine.shutdown()
                return None
            when_waiting(waits.set)
            return outcomes_of(rank.engine, handles)

        (error,) = in_threads(ranks, body)[0]
        assert isinstance(error, AbortedError)
    assert ABSENT == 1
