"""The names of ``horovod.tensorflow.mpi_ops``: basics, process sets and collectives. Programs may import them from here."""

from typing import Any

from hvdlite.basics import *  # noqa: F403
from hvdlite.basics import HorovodBasics
from hvdlite.process_sets import *  # noqa: F403
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Adasum as Adasum
from hvdlite.requests import Average as Average
from hvdlite.requests import Max as Max
from hvdlite.requests import Min as Min
from hvdlite.requests import Product as Product
from hvdlite.requests import Sum as Sum
from hvdlite.tensorflow import ops
from hvdlite.tensorflow.functions import broadcast_ as broadcast_
from hvdlite.tensorflow.ops import *  # noqa: F403

_basics = HorovodBasics()  # not public, but programs call its _get_process_set_ids_and_ranks()


def _allreduce(
    tensor: Any,
    name: str | None = None,
    op: int = Sum,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`allreduce` with Sum as the default op. It is not public, but programs call it."""
    return ops.allreduce(**locals())  # all arguments, by name
