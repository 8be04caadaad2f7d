"""The names of ``horovod.tensorflow.mpi_ops``: basics, process sets and collectives, which programs import from here too."""

from hvdlite.basics import *  # noqa: F403
from hvdlite.basics import HorovodBasics
from hvdlite.process_sets import *  # noqa: F403
from hvdlite.requests import Adasum as Adasum
from hvdlite.requests import Average as Average
from hvdlite.requests import Max as Max
from hvdlite.requests import Min as Min
from hvdlite.requests import Product as Product
from hvdlite.requests import Sum as Sum
from hvdlite.tensorflow.functions import broadcast_ as broadcast_
from hvdlite.tensorflow.ops import *  # noqa: F403

_basics = HorovodBasics()  # not public, but programs ask it for all process sets
