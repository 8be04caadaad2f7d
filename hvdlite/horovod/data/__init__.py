"""``horovod.data``: the names of `hvdlite.data`."""

from hvdlite.data import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]
