"""Signs of life between engines on several hosts; who is accused of silence is in tests/native/cases/engine/heartbeat.cc."""

import time

import numpy as np
from support.thread_ranks import SUM, engines, in_threads


def test_engines_of_hosts_that_have_nothing_to_say_hear_each_other():
    def body(rank):
        for _ in range(2):
            value, total = np.full(5, rank.rank + 1.0), np.zeros(5)
            rank.engine.wait(rank.start(0, "x", value, total, op=SUM))
            assert total.tolist() == [6.0] * 5
            time.sleep(1.5)

    with engines(3, {"peer_timeout": 0.5}, [0, 0, 1]) as ranks:
        in_threads(ranks, body)
