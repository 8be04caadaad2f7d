"""The parameters that may be tuned in a job of a given shape, and which of them never change the bits of results.

A setting keeps the bits if every sum is still made in the same order. docs/algorithms.md says on what the order of each
algorithm depends; the rules here are for all process sets that a job may have, not only the one of all ranks.
"""

from dataclasses import dataclass

from hvdlite.config import Config
from hvdlite.tuning.search import Parameter, Value

__all__ = ["TUNABLE", "JobShape", "keeps_bits", "parameters"]

_KIB, _MIB = 1 << 10, 1 << 20

# The values to try. Sizes are powers of two around the default.
_LADDERS: dict[str, tuple[Value, ...]] = {
    "tile_bytes": tuple(size * _KIB for size in (32, 64, 128, 256, 512, 1024)),
    "fusion_threshold": tuple(size * _MIB for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    "spin_us": (-1.0, 0.0, 10.0, 25.0, 50.0, 100.0, 200.0),
    "segment_bytes": tuple(size * _KIB for size in (32, 64, 128, 256, 512, 1024)),
    "remote_message_bytes": tuple(size * _KIB for size in (8, 16, 32, 64, 128, 256)),
    "recursive_doubling_max_bytes": tuple(size * _KIB for size in (64, 128, 256, 512, 1024, 2048, 4096)),
    # Forced ones serve every process set: no shm, no hierarchical.
    "allreduce_algorithm": ("auto", "direct", "ring", "recursive_doubling"),
}
# Values without an order; for the spin budget, -1 lets the engine choose.
_UNORDERED = ("spin_us", "allreduce_algorithm")

# The names of all knobs that a tuning may set.
TUNABLE = tuple(_LADDERS)


@dataclass(frozen=True)
class JobShape:
    """The properties of a job that decide which parameters have an effect.

    Attributes:
        ranks_per_host: the number of ranks on each host.
        shared_memory: do the ranks of a host share memory?
        deterministic: is the knob deterministic on?
    """

    ranks_per_host: tuple[int, ...]
    shared_memory: bool = True
    deterministic: bool = False

    @property
    def ranks(self) -> int:
        """All of them."""
        return sum(self.ranks_per_host)

    @property
    def shares(self) -> bool:
        """Do any two ranks share memory?"""
        return self.shared_memory and max(self.ranks_per_host) > 1

    @property
    def flat_ranks(self) -> int:
        """The largest number of ranks of a process set that exchange only messages, without shared memory."""
        return len(self.ranks_per_host) if self.shared_memory else self.ranks


def matters(name: str, shape: JobShape) -> bool:
    """Does a knob change anything in a job of this shape?"""
    if shape.ranks < 2:
        return False
    several_hosts = len(shape.ranks_per_host) > 1
    if name == "tile_bytes":
        return shape.shares
    if name == "remote_message_bytes":
        return several_hosts
    if name == "recursive_doubling_max_bytes" and shape.deterministic and shape.ranks > 2:
        return False  # every allreduce and reducescatter is direct then
    if name in ("segment_bytes", "recursive_doubling_max_bytes", "allreduce_algorithm"):
        # On one host with shared memory nothing travels in messages.
        return several_hosts or not shape.shares
    return True


def keeps_bits(name: str, shape: JobShape) -> bool:
    """Are the bits of all sums the same for every value of the knob, in a job of this shape?"""
    if name in ("tile_bytes", "spin_us", "remote_message_bytes"):
        return True  # who adds what in which order depends on none of these
    if shape.ranks <= 2:
        return True  # one addition an element
    if name == "allreduce_algorithm":
        return False
    # The layout of a buffer, or the choice between two orders, counts where three ranks or more exchange messages only.
    return shape.deterministic or shape.flat_ranks <= 2


def parameters(shape: JobShape, config: Config, any_bits: bool = False) -> tuple[list[Parameter], list[str]]:
    """What to search in a job of this shape, and the knobs that are left out because they would change bits.

    Args:
        shape: the shape of the job.
        config: the job's knobs; a knob that the environment sets is not searched.
        any_bits: may the search choose settings that add in another order than the defaults?
    """
    found, left_out = [], []
    for name, values in _LADDERS.items():
        if name in config.origins or not matters(name, shape):
            continue
        if not (any_bits or keeps_bits(name, shape)):
            left_out.append(name)
            continue
        if name == "allreduce_algorithm" and shape.deterministic:
            values = ("auto", "direct", "recursive_doubling")  # init() refuses a ring then
        found.append(Parameter(name, values, ordered=name not in _UNORDERED))
    return found, left_out
