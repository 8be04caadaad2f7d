"""The names of ``horovod.torch.mpi_ops`` (basics, process sets, collectives), for programs that import this module."""

from hvdlite.basics import *  # noqa: F403
from hvdlite.basics import HorovodBasics
from hvdlite.compression import Compression as Compression
from hvdlite.errors import HorovodInternalError as HorovodInternalError
from hvdlite.ops import *  # noqa: F403
from hvdlite.process_sets import *  # noqa: F403
from hvdlite.torch.ops import *  # noqa: F403 - last: replaces functions of hvdlite.ops by those that autograd can differentiate

_basics = HorovodBasics()  # not public, but programs call its _get_process_set_ids_and_ranks()
