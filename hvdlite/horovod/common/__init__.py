"""``horovod.common``: the names that Horovod's doors have in common."""
