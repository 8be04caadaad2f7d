"""The names of ``horovod.tensorflow.util``. They are not public, but programs use them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["gpu_available", "refs_to_vars", "vars_to_refs"]

_cache = functools.cache


def _executing_eagerly() -> bool:
    """Whether operations run eagerly. In a ``tf.function`` they do not."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """The function as a ``tf.function``."""
    return tf.function(f)


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether TensorFlow finds a GPU.

    Args:
        ext_base_name: accepted for compatibility with Horovod; not used. `horovod.common.util.gpu_available` uses it.
        verbose: accepted for compatibility with Horovod; not used.
    """
    return bool(tf.config.list_physical_devices("GPU"))


def vars_to_refs(vars: Any) -> Any:
    """Converts variables (one, a list, or a list of lists) to references, which can be keys of a dict."""
    if isinstance(vars, Sequence):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Converts results of `vars_to_refs` back to variables. Sequences become lists."""
    if isinstance(refs, Sequence):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref()
