"""A link between hosts for tests of `Compression.auto`: the times of its measurement are computed, for each rank its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from hvdlite import auto_compression, link_measurement, startup
from hvdlite.runtime import RUNTIME

SLOW_RATE, FAST_RATE = 1.25e6, 1.25e10  # bytes a second


@contextmanager
def injected_link(rate: float, latency: float = 1e-4, coding: float = 1e-9) -> Iterator[list[int]]:
    """Each rank is on a host of its own, and this rank measures this link; the list gets the elements of its allreduces.

    Ranks may inject different links: they must agree on the slowest times.
    """
    measured: list[int] = []
    _forget()
    size, rank = RUNTIME.require_topology().size, RUNTIME.require_topology().rank

    def seconds(elements: int, coded: bool, set_id: int) -> float:
        measured.append(elements)
        each = 1.016 / rate + coding if coded else 4 / rate
        return latency + 2 * (size - 1) / size * each * elements

    with (
        mock.patch.object(link_measurement, "own_seconds", seconds),
        mock.patch.object(startup, "machine_id", return_value=f"host {rank}"),
    ):
        try:
            yield measured
        finally:
            _forget()


def _forget() -> None:
    """Measured links are kept until a shutdown, and tests of one file share a job."""
    auto_compression._links.clear()
    auto_compression._logged.clear()
