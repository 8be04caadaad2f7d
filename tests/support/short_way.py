"""The short way as tests call it: to a result, to a handle, to a group's handle; and arrays that it does not take."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from support.thread_ranks import SUM

from hvdlite._engine import HandleState
from hvdlite.backends import plain_of

WORLD_OF_TWO = SimpleNamespace(member_id=0, ranks=[0, 1])


def kept_nothing(memory, handle, code):
    raise AssertionError("nothing is left in flight")


class Started(HandleState):
    """A handle that only notes that it was let go with its operation in flight."""

    __slots__ = ("__weakref__",)
    left: ClassVar[list[int]] = []

    def _leave(self):
        self.left.extend(self._numbers)


def reduce(engine, name, tensor, in_place=True, keep=kept_nothing, op=SUM, prescale=1.0, process_set=WORLD_OF_TWO):
    """The result of the short way; None if the call has to go the general way."""
    engine.connect(plain_of, keep)
    return engine.allreduce_now(tensor, None, name, op, prescale, 1.0, process_set, in_place)


def started(engine, name, tensor, in_place=True, op=SUM, process_set=WORLD_OF_TWO):
    """The handle of the short way; None if the call has to go the general way."""
    engine.connect(plain_of, kept_nothing, Started)
    return engine.start_allreduce(tensor, None, name, op, 1.0, 1.0, process_set, in_place)


def start(engine, name, tensor, in_place=True, op=SUM, process_set=WORLD_OF_TWO):
    """The operation's number and its output; None if the call has to go the general way."""
    handle = started(engine, name, tensor, in_place, op, process_set)
    return None if handle is None else (*handle._numbers, handle._finish[0](None))


def started_group(engine, name, tensors, in_place=True, op=SUM):
    """The handle of a group; None if the call has to go the general way."""
    engine.connect(plain_of, kept_nothing, Started)
    return engine.start_allreduces(tensors, name, op, 1.0, 1.0, WORLD_OF_TWO, in_place, True)


def broadcast(engine, name, tensor, root, in_place=True, process_set=WORLD_OF_TWO):
    engine.connect(plain_of, kept_nothing)
    return engine.broadcast_now(tensor, root, name, process_set, in_place)


def misaligned():
    return np.frombuffer(bytearray(4 * 3 + 1), np.uint8)[1:].view(np.float32)


def read_only():
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    return array
