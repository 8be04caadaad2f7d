"""``horovod.runner.common``: the common parts of Horovod's launchers that programs use."""
