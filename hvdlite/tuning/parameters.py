"""The parameters that may be tuned in a job of a given shape, and which of them never change the bits of results.

A setting keeps the bits if the additions of every sum keep their order. docs/algorithms.md says for each algorithm on what this
order depends. The rules here hold for every process set that a job may have, and not only for the set of all ranks.
"""

from dataclasses import dataclass

from hvdlite.config import Config
from hvdlite.tuning.search import Parameter, Value

_KIB, _MIB = 1 << 10, 1 << 20

# The values to try. Sizes are powers of two around the default.
_LADDERS: dict[str, tuple[Value, ...]] = {
    "tile_bytes": tuple(size * _KIB for size in (32, 64, 128, 256, 512, 1024)),
    "fusion_threshold": tuple(size * _MIB for size in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    "spin_us": (-1.0, 0.0, 10.0, 25.0, 50.0, 100.0, 200.0),
    "segment_bytes": tuple(size * _KIB for size in (32, 64, 128, 256, 512, 1024)),
    "remote_message_bytes": tuple(size * _KIB for size in (8, 16, 32, 64, 128, 256)),
    "recursive_doubling_max_bytes": tuple(size * _KIB for size in (64, 128, 256, 512, 1024, 2048, 4096)),
    # A forced algorithm has to serve every process set. So those that need shared memory are not tried.
    "allreduce_algorithm": ("auto", "direct", "ring", "recursive_doubling"),
}
# The knobs whose values have no order. For spin_us, -1 lets the engine choose.
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
        """The number of all ranks."""
        return sum(self.ranks_per_host)

    @property
    def shares(self) -> bool:
        """Do any two ranks share memory?"""
        return self.shared_memory and max(self.ranks_per_host) > 1

    @property
    def flat_ranks(self) -> int:
        """The largest number of ranks in a process set of which no two share memory, so that they exchange only messages."""
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
    # The other knobs change the layout of a buffer, or the algorithm. Where three ranks or more exchange only messages, the
    # order of additions depends on both.
    return shape.deterministic or shape.flat_ranks <= 2


def parameters(shape: JobShape, config: Config, any_bits: bool = False) -> tuple[list[Parameter], list[str]]:
    """What to search in a job of this shape, and the knobs that are left out because they may change bits.

    Args:
        shape: the shape of the job.
        config: the job's knobs; a knob that the environment sets is not searched.
        any_bits: may the search choose settings with which sums are added in another order than with the defaults?
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
