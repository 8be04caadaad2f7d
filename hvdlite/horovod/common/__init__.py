"""``horovod.common``: what Horovod's doors have in common, under the names that programs import it by."""
