"""What Python decodes of other ranks' bytes, with seeded random changes: the headers before objects."""

import pickle
import struct
from random import Random

import numpy as np
import pytest
from support.seeds import seeds

from hvdlite import objects
from hvdlite.errors import HvdliteError, InternalError, InvalidArgumentError

SEEDS = seeds(range(20))
AWKWARD = (-(1 << 63), -1, 0, 1, 2, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1)


def changed(random, values):
    """Some of the values are others: awkward ones, or with some bits turned."""
    values = list(values)
    for _ in range(random.randint(1, 3)):
        place = random.randrange(len(values))
        if random.random() < 0.5:
            values[place] = random.choice(AWKWARD)
        else:
            raw = bytearray(struct.pack("=q", values[place]))
            raw[random.randrange(8)] ^= 1 << random.randrange(8)
            values[place] = struct.unpack("=q", raw)[0]
    return values


@pytest.mark.parametrize("seed", SEEDS)
def test_headers_of_gathered_objects(seed):
    """Either the parts are exactly the bytes that came, cut without a gap, or the headers are refused."""
    random = Random(seed)
    for _ in range(200):
        parts = [random.randbytes(random.choice((0, 1, 7, 100))) for _ in range(random.randint(1, 5))]
        data = b"".join(parts)
        rows = [[0, len(part), rank] for rank, part in enumerate(parts)]
        assert [bytes(part) for _, _, part in objects._cut(rows, memoryview(data))] == parts
        row = random.randrange(len(rows))
        rows[row] = changed(random, rows[row])
        try:
            sent = objects._cut(rows, memoryview(data))
        except InternalError:
            continue
        assert b"".join(part for _, _, part in sent) == data
        assert all(state in (0, 1) for state, _, _ in sent)


@pytest.mark.parametrize("header", [[2, 5], [-1, 5], [0, -1], [0, 1 << 62], [1, -(1 << 63)]])
def test_a_broadcast_header_that_cannot_be(monkeypatch, header):
    """No memory is made for it."""
    monkeypatch.setattr(objects, "broadcast_", lambda array, *_: np.copyto(array, header))
    monkeypatch.setattr(np, "empty", lambda *_: pytest.fail("made"))
    monkeypatch.setattr(objects.RUNTIME, "require_topology", lambda: type("Topology", (), {"rank": 1}))
    with pytest.raises(InternalError, match="rank 0 announces an object"):
        objects.broadcast_object(None, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_pickles_are_this_ranks_error(monkeypatch, seed):
    """A damaged pickle of plain data is a clear error or another value; it names the sender."""
    random = Random(seed)
    monkeypatch.setattr(objects.RUNTIME, "require_topology", lambda: type("Topology", (), {"rank": 1}))
    whole = pickle.dumps({"a": [1, 2.5, "three"], "b": list(range(20))}, protocol=pickle.HIGHEST_PROTOCOL)
    for _ in range(50):
        raw = whole[: random.randrange(len(whole))]
        with pytest.raises(InvalidArgumentError, match="could not unpickle what rank 3 sent"):
            objects._loads(memoryview(raw), "broadcast_object", 3)


def test_the_text_of_a_failure_is_shown_whatever_its_bytes(monkeypatch):
    text = b"could not \xff\xfe pickle"
    rows = [[1, len(text), 0]]
    gathered = {2: np.array(rows), 1: np.frombuffer(text, np.uint8)}
    monkeypatch.setattr(objects.submission, "gather", lambda array, *_, **__: gathered[array.ndim])
    monkeypatch.setattr(objects.RUNTIME, "require_topology", lambda: type("Topology", (), {"rank": 1}))
    with pytest.raises(HvdliteError, match="rank 0 could not"):
        objects.allgather_object(1)
