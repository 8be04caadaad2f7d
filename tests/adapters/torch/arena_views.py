"""What tests of gradients in an arena look at, and a step of training."""

from pathlib import Path

from reference import Pair, mse


def arena_ops():
    from hvdlite.runtime import RUNTIME

    return RUNTIME.engine.counters()["arena_ops"]


def arenas_mapped():
    return sum("hvdlite-arena" in line for line in Path("/proc/self/maps").read_text().splitlines())


def in_arena(tensors):
    """For each tensor, does its memory lie in an arena?"""
    ranges = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "hvdlite-arena" in line:
            ranges.append([int(bound, 16) for bound in line.split()[0].split("-")])
    return [tensor is not None and any(low <= tensor.data_ptr() < high for low, high in ranges) for tensor in tensors]


def viewing(hvd, *args, **options):
    """A pair whose gradients get places as soon as there can be any."""
    return Pair(hvd, *args, gradient_as_bucket_view=True, **options)


def train(pair, step, before=None, **reset):
    """One step of both models; before() runs in front of backward."""
    part, whole = pair.parts(step)
    pair.zero(**reset)
    if before is not None:
        before()
    mse(pair.model, *part).backward()
    mse(pair.twin, *whole).backward()
    pair.check_grads()
    pair.step()
