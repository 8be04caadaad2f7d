"""``horovod.runner.common.util``: helpers of Horovod's launchers that programs use."""
