"""Messages whose tensors native code describes: one at a time, waited for or in flight, and several together."""

import math

import numpy as np
import pytest
from support.dlpack import needs_exchange
from support.plain_calls import WORLD_OF_TWO, Started, misaligned, read_only
from support.thread_ranks import engines, in_threads

from hvdlite.backends import plain_of
from hvdlite.requests import Kind

torch = pytest.importorskip("torch")


def message(engine, kind, tensor, peer=0, tag=3, name=None, process_set=WORLD_OF_TWO, blocking=True):
    engine.connect(plain_of, Started)
    return engine.message(kind, tensor, peer, tag, name, process_set, blocking)


def test_a_message_is_sent_and_received_in_place():
    with engines(2) as ranks:
        sent, received = np.arange(5.0), np.zeros(5)
        ends = ((Kind.SEND, sent, 1), (Kind.RECV, received, 0))
        results = in_threads(ranks, lambda rank: message(rank.engine, *ends[rank.rank]))
        assert results[0] is sent
        assert results[1] is received
        assert received.tolist() == sent.tolist() == [0, 1, 2, 3, 4]


@needs_exchange
def test_messages_in_flight():
    """One alone, and several together: a send gives None, a receive its tensor."""
    with engines(2) as ranks:
        ints, floats = np.arange(4), torch.arange(3.0)
        got = np.zeros(4, np.int64), torch.zeros(3)

        def body(rank):
            kind, tensors = (Kind.SEND, (ints, floats)) if rank.rank == 0 else (Kind.RECV, got)
            other, tags = 1 - rank.rank, range(2)
            works = [message(rank.engine, kind, tensors[tag], other, tag, blocking=False) for tag in tags]
            last = rank.engine.messages([kind] * 2, [(None, tensors[tag], other, tag, None) for tag in tags], WORLD_OF_TWO)
            return [work._outputs(math.inf) for work in (*works, last)]

        sent, received = in_threads(ranks, body)
        assert sent == [None, None, [None, None]]
        assert received[0] is received[2][0] is got[0]
        assert received[1] is received[2][1] is got[1]
        assert (got[0].tolist(), got[1].tolist()) == (ints.tolist(), floats.tolist())


UNUSUAL_MESSAGES = (
    *({"peer": peer} for peer in (None, -1, True)),
    *({"tag": tag} for tag in (None, -1, 1 << 31, 1.0)),
    *({"tensor": make()} for make in (read_only, misaligned, list)),
    {"name": 7},
    {"process_set": None},
)


@pytest.mark.parametrize("unusual", UNUSUAL_MESSAGES, ids=str)
@pytest.mark.parametrize("kind", [Kind.SEND, Kind.RECV])
def test_unusual_messages_are_left_to_the_general_way(kind, unusual):
    with engines(1) as (rank,):
        whole = {"tensor": np.ones(3), "peer": 0, "tag": 3, "name": None, **unusual}
        for blocking in (True, False):
            assert message(rank.engine, kind, blocking=blocking, **whole) is None
        process_set = whole.pop("process_set", WORLD_OF_TWO)
        assert rank.engine.messages([kind] * 2, [(None, np.ones(3), 0, 3, None), (None, *whole.values())], process_set) is None
        assert rank.engine.counters()["submitted"] == 0
