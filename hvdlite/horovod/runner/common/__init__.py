"""``horovod.runner.common``: what Horovod's launchers have in common, as far as programs borrow it."""
