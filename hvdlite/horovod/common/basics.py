"""``horovod.common.basics``: the basics as one object."""

from hvdlite.basics import HorovodBasics

__all__ = ["HorovodBasics"]
