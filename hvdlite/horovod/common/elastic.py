"""``horovod.common.elastic``: the names of `hvdlite.elastic`."""

from hvdlite.elastic import HorovodInternalError, HostsUpdatedInterrupt, HostUpdateResult, ObjectState, State, run_fn

__all__ = ["HorovodInternalError", "HostUpdateResult", "HostsUpdatedInterrupt", "ObjectState", "State", "run_fn"]
