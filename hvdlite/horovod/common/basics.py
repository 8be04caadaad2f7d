"""``horovod.common.basics``: the functions of `hvdlite.basics` as methods of one object."""

from hvdlite.basics import HorovodBasics

__all__ = ["HorovodBasics"]
