"""Functions that make plain calls of the engine: for a result, for a work, and for the work of a group. It also makes arrays
that are not plain.
"""

from types import SimpleNamespace

import numpy as np
from support.thread_ranks import SUM

from hvdlite._engine import Work
from hvdlite.backends import plain_of

WORLD_OF_TWO = SimpleNamespace(member_id=0, ranks=[0, 1])


class Started(Work):
    """A work that supports weak references, as handles do."""

    __slots__ = ("__weakref__",)


def reduce(engine, name, tensor, in_place=True, op=SUM, prescale=1.0, process_set=WORLD_OF_TWO):
    """The result of a blocking call; None if the engine leaves the call to the Python code for general tensors."""
    engine.connect(plain_of)
    return engine.allreduce(tensor, None, name, op, prescale, 1.0, process_set, in_place, True)


def started(engine, name, tensor, in_place=True, op=SUM, process_set=WORLD_OF_TWO):
    """The work of a call; None if the engine leaves the call to the Python code for general tensors."""
    engine.connect(plain_of, Started)
    return engine.allreduce(tensor, None, name, op, 1.0, 1.0, process_set, in_place, False)


def started_group(engine, name, tensors, in_place=True, op=SUM):
    """The work of a group; None if the engine leaves the call to the Python code for general tensors."""
    engine.connect(plain_of, Started)
    return engine.allreduce_group(tensors, name, op, 1.0, 1.0, WORLD_OF_TWO, in_place, True)


def broadcast(engine, name, tensor, root, in_place=True, process_set=WORLD_OF_TWO, blocking=True):
    engine.connect(plain_of, Started)
    return engine.broadcast(tensor, root, name, process_set, in_place, blocking)


def new_shape(engine, kind, tensor, op=SUM):
    """The output of an unnamed allgather or reducescatter; None as for `reduce`."""
    engine.connect(plain_of)
    return engine.new_shape(kind, tensor, None, op, 1.0, 1.0, WORLD_OF_TWO)


def misaligned():
    return np.frombuffer(bytearray(4 * 3 + 1), np.uint8)[1:].view(np.float32)


def read_only():
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return array
