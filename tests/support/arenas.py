"""Engines in threads whose ranks share an arena, and functions for arrays and allreduces in it."""

from contextlib import contextmanager

import numpy as np
from support.thread_ranks import ALLREDUCE, SUM, engines

SIZE = 4096


def open_arenas(ranks, nbytes=SIZE, kind="memfd", process_set=0):
    """Opens an arena for each of these ranks, which are all members of the process set; returns one arena for each rank."""
    arenas = [rank.engine.create_arena(process_set, nbytes, kind) for rank in ranks]
    for arena in arenas:
        arena.open([other.address for other in arenas])
    for arena in arenas:
        arena.hide()
    return arenas


@contextmanager
def ranks_with_arenas(size, nbytes=SIZE, config=None, kind="memfd"):
    with engines(size, config) as ranks:
        arenas = open_arenas(ranks, nbytes, kind)
        for rank, arena in zip(ranks, arenas, strict=True):
            rank.arena = arena
        yield ranks


def view(rank, count, dtype=np.float32, offset=0):
    return np.frombuffer(rank.arena, dtype, count, offset)


def reduce(rank, name, array, **options):
    """Makes an allreduce in place. The array lies in the rank's arena, unless the option `arena` names another."""
    options = {"op": SUM, "arena": rank.arena.id, **options}
    return rank.start(ALLREDUCE, name, array, array, **options).result()


def arena_ops(rank):
    return rank.engine.counters()["arena_ops"]
