"""``horovod.runner.util``: helpers of Horovod's launcher that programs use."""
