"""Makes hvdlite's ops for TensorFlow, in the form that fits the mode and the graph.

Each collective exists without state and with it. Eagerly the difference is nil; the op with state is made, and waits in the
thread that calls it, where TensorFlow would wait anyway. In a function an op without state is ordered by nothing but its
inputs, and dropped where nobody uses its result.

An op without state whose inputs are all constants, as the gradient of a linear loss can be, is evaluated once, while
TensorFlow optimises the graph, and never again. So it has one more input, the anchor, that never is a constant: a tensor from
outside of the function, too large to become a constant inside. There are two kinds of graphs that it cannot be had in, and
there ops have state: graphs of TensorFlow 1, which have no outside, and the gradients of loops, which must not refer to
tensors that the loop does not. Ops also have state where their kernels are not asynchronous: each that waits occupies one of
TensorFlow's threads, of which there are as many as processors, and ranks whose threads wait for different tensors would wait
for ever.
"""

import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import tensorflow as tf

from hvdlite.tensorflow import xla
from hvdlite.tensorflow.library import is_asynchronous, load

__all__ = ["bits_of", "factor_of", "make"]

# Captured tensors of up to 128 elements become constants of a function.
_ANCHOR_ELEMENTS = 256


def make(kind: str, *inputs: Any, stateful: bool, anchor: tf.Tensor | None = None, **attributes: Any) -> Any:
    """Makes an op.

    Args:
        kind: such as ``"GroupedAllreduce"``.
        inputs: of the op, without the anchor.
        stateful: is it to have state in a graph?
        anchor: of an op in the same graph, for one without state; None for a new one.
        attributes: of the op.

    Returns:
        What TensorFlow's wrapper of the op returns.

    """
    if tf.executing_eagerly():
        return _wrapper(kind, True)(*inputs, blocking=True, **attributes)
    if xla.in_xla_context():
        return _compiled(kind, inputs, attributes)
    if not stateful and anchor is None:
        anchor = _new_anchor()
    if stateful or anchor is None:
        return _wrapper(kind, True)(*inputs, **attributes)
    return _wrapper(kind, False)(*inputs, anchor, **attributes)


def _compiled(kind: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """What stands for an op in a program that XLA compiles."""
    if kind not in ("Allreduce", "GroupedAllreduce"):
        xla.require_no_xla(kind.lower())
    results = xla.grouped_allreduce(
        inputs[0] if kind == "GroupedAllreduce" else inputs,
        name=attributes["tensor_name"],
        op=attributes["reduce_op"],
        prescale=factor_of(attributes["prescale_bits"]),
        postscale=factor_of(attributes["postscale_bits"]),
        set_id=attributes["process_set"],
    )
    return results if kind == "GroupedAllreduce" else results[0]


def bits_of(factor: float) -> int:
    """A factor as an attribute of an op: floats there have 32 bits only."""
    bits: int = struct.unpack("<q", struct.pack("<d", factor))[0]
    return bits


def factor_of(bits: int) -> float:
    """The factor that an attribute stands for."""
    factor: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return factor


def _new_anchor() -> tf.Tensor | None:
    """The anchor for an op in this graph; None if it has to have state."""
    if not is_asynchronous():
        return None
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "capture") or not tf.compat.v1.executing_eagerly_outside_functions():
        return None  # no function's, or that of a branch in a graph of TensorFlow 1
    while graph is not None:
        if type(graph).__name__ == "_WhileBodyGradFuncGraph":
            return None
        graph = getattr(graph, "outer_graph", None)
    return _eager_anchor()


@cache
def _eager_anchor() -> tf.Tensor:
    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.zeros([_ANCHOR_ELEMENTS], tf.uint8)


@cache
def _wrapper(kind: str, stateful: bool) -> Any:
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in kind)
    return getattr(load(), f"hvdlite{words}_stateful" if stateful else f"hvdlite{words}")
