"""The names of ``horovod.torch.mpi_ops``: basics, process sets and collectives, which programs import from here too."""

from hvdlite.basics import *  # noqa: F403
from hvdlite.basics import HorovodBasics
from hvdlite.compression import Compression as Compression
from hvdlite.errors import HorovodInternalError as HorovodInternalError
from hvdlite.ops import *  # noqa: F403
from hvdlite.process_sets import *  # noqa: F403
from hvdlite.torch.ops import *  # noqa: F403 - the last, as these have gradients

_basics = HorovodBasics()  # not public, but programs ask it for all process sets
