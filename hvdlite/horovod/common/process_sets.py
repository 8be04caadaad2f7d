"""``horovod.common.process_sets``: the names of `hvdlite.process_sets`."""

from hvdlite.process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
