"""The names of ``horovod.tensorflow.util``, which programs borrow although they are not public."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["gpu_available", "refs_to_vars", "vars_to_refs"]

_cache = functools.cache


def _executing_eagerly() -> bool:
    """Are operations run at once? Not inside ``tf.function``."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """The function as a ``tf.function``."""
    return tf.function(f)


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Does TensorFlow see a GPU?

    Args:
        ext_base_name: not looked at; `horovod.common.util.gpu_available` asks other frameworks.
        verbose: likewise.
    """
    return bool(tf.config.list_physical_devices("GPU"))


def vars_to_refs(vars: Any) -> Any:
    """Variables, in one list or a list of lists, as references that can be keys."""
    if isinstance(vars, Sequence):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """What `vars_to_refs` was given, as lists."""
    if isinstance(refs, Sequence):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
