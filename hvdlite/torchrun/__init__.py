"""Makes one MPI job of the processes that torchrun has started.

`hvdlite.torchrun.join` runs in each process before MPI is initialised. On each node, the process with local rank 0 starts a
PMIx server (`hvdlite.torchrun.server`), which does for the node's processes what mpirun's daemon does for mpirun's ranks.
"""

from hvdlite import config as knobs

__all__ = ["join_job"]


def join_job(patience: float = 0.0) -> None:
    """Makes this process a rank of an MPI job, if torchrun has started it. Call it before MPI is initialised.

    It does nothing if torchrun has not started this process, or has started only this process, or if the launcher of an MPI
    gives this process the same rank and size as torchrun, or in a child of a rank. Collective over the processes that torchrun
    has started.

    Args:
        patience: the limit, in seconds, to the wait for the other processes; 0 means no limit.

    Raises:
        SystemFailure: MPI was initialised before, or no PMIx server could be started.
        UnsupportedError: the processes of the loaded MPI cannot be started by torchrun.
        OperationTimeoutError: the other processes have not come in time.
    """
    place = knobs.torchrun_place()
    if place is None or place.size == 1 or knobs.inherits_torchrun_job():
        return
    from hvdlite.torchrun.join import join_as  # not above: it takes 30 ms, and few programs need it

    join_as(place, patience)
