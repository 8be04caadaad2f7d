"""The topology: ranks and sizes of this process in the job and on its host, fixed when hvdlite is initialised."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """The place of one rank: in the job (rank), on its host (local), and across hosts (cross)."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool
