"""Makes one MPI job of the processes that torchrun has started.

`hvdlite.torchrun.join` runs in each process before MPI is initialised. The process with local rank 0 of each node starts a PMIx
server (`hvdlite.torchrun.server`), which does for Open MPI what mpirun's daemon does for its ranks.
"""
