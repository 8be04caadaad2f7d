"""Makes hvdlite's ops for TensorFlow, in the form that fits the mode and the graph.

Each collective exists as an op without state and as an op with state. Eagerly there is no difference; the op with state is
used, and waits in the thread that calls it, where TensorFlow would wait anyway. In a ``tf.function`` an op without state runs
as soon as its inputs are there, in no fixed order, and TensorFlow removes the op if its result is not used.

If all inputs of an op without state are constants (the gradient of a linear loss may be a constant), TensorFlow evaluates the
op once, when TensorFlow optimizes the graph, and never again. So the op has one more input, the *anchor*, which TensorFlow does
not take for a constant:

- In the outermost function the anchor is a random number. Ops for random numbers have state, but TensorFlow does not order them
  with other ops, so the anchor exists as soon as the function begins.
- In inner functions and loops ops with state would prevent inlining. There the anchor is a tensor from outside that is too
  large to become a constant of the function. (The outermost function does not use such a tensor, because a tensor from outside
  arrives after all arguments of the function, so reductions of arguments would have to wait.)

In three cases ops always have state: in graphs of TensorFlow 1, which does not order ops with state either; in the gradients of
loops and branches, which cannot use a tensor from outside that the loop or branch itself does not use; and if kernels are not
asynchronous. In the last case each kernel that waits occupies a thread of TensorFlow, which has one thread for each processor.
If all threads of two ranks waited for different tensors, the ranks would wait forever. Ops with state run in the order of the
program, which is the same on all ranks.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.func_graph import FuncGraph

from hvdlite.errors import InvalidArgumentError
from hvdlite.requests import Kind
from hvdlite.tensorflow import xla
from hvdlite.tensorflow.library import is_asynchronous, load
from hvdlite.xla import TensorGroup

# The name of the graph's collection that contains the anchor.
_ANCHORS = "hvdlite_anchors"
# The number of elements of a captured anchor. Captured tensors of up to 128 elements become constants of a function.
_CAPTURED_ELEMENTS = 256


def make(kind: str, *inputs: Any, stateful: bool = False, **attributes: Any) -> Any:
    """Makes an op.

    Args:
        kind: name of the op in the library, such as ``"GroupedAllreduce"``.
        inputs: inputs of the op, without the anchor.
        stateful: True: the op has state in a graph.
        attributes: attributes of the op.

    Returns:
        The result of TensorFlow's wrapper of the op: a tensor, or a list or tuple of tensors.

    Raises:
        InvalidArgumentError: the name has a null character, at which the engine's names end.

    """
    if "\0" in (name := attributes.get("tensor_name", "")):
        raise InvalidArgumentError(f"the name {name!r} has a null character; give the tensor another name")
    if tf.executing_eagerly():
        return _wrapper(kind, True)(*inputs, blocking=True, **attributes)
    if xla.in_xla_context():
        return _compiled(kind, inputs, attributes)
    anchor = None if stateful else _anchor()
    if anchor is None:
        return _wrapper(kind, True)(*inputs, **attributes)
    return _wrapper(kind, False)(*inputs, anchor, **attributes)


def _compiled(kind: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> Any:
    """The replacement of an op in a program that XLA compiles."""
    if not kind.endswith("Allreduce"):
        xla.require_no_xla(_words(kind))
    grouped, weighted = kind.startswith("Grouped"), kind.endswith("WeightedAllreduce")
    group = TensorGroup(
        Kind.ALLREDUCE,
        attributes["tensor_name"],
        op=attributes["reduce_op"],
        process_set=attributes["process_set"],
        prescale=factor_of(attributes["prescale_bits"]),
        postscale=factor_of(attributes["postscale_bits"]),
        weighted=weighted,
        codec={key: value for key, value in attributes.items() if key.startswith("codec")},
    )
    results = xla.grouped_allreduce(inputs[0] if grouped else inputs[:1], group, inputs[1] if weighted else None)
    return results if grouped else results[0]


def bits_of(factor: float) -> int:
    """A factor as an integer attribute of an op, because an attribute that is a float has only 32 bits."""
    bits: int = struct.unpack("<q", struct.pack("<d", factor))[0]
    return bits


def factor_of(bits: int) -> float:
    """The factor that an attribute encodes (`bits_of`)."""
    factor: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return factor


def _anchor() -> tf.Tensor | None:
    """The anchor for an op in this graph; None if the op must be stateful."""
    graph = tf.compat.v1.get_default_graph()
    if not (isinstance(graph, FuncGraph) and is_asynchronous() and tf.compat.v1.executing_eagerly_outside_functions()):
        return None
    if not isinstance(graph.outer_graph, FuncGraph):
        return _random_number(graph)
    while isinstance(graph, FuncGraph):
        is_backward = graph.name.startswith("__backward_")  # of a function, which may have been called in a loop or branch
        if is_backward or type(graph).__name__ in ("_WhileBodyGradFuncGraph", "_CondGradFuncGraph"):
            return None
        graph = graph.outer_graph
    return _captured()


def _random_number(graph: FuncGraph) -> tf.Tensor:
    anchors = graph.get_collection_ref(_ANCHORS)
    if not anchors:
        with tf.control_dependencies(None), tf.device("/CPU:0"):
            anchors.append(tf.raw_ops.RandomUniform(shape=[1], dtype=tf.float32, seed=1, seed2=1, name="hvdlite_anchor"))
    return anchors[0]


@cache
def _captured() -> tf.Tensor:
    with tf.init_scope(), tf.device("/CPU:0"):
        return tf.zeros([_CAPTURED_ELEMENTS])


@cache
def _wrapper(kind: str, stateful: bool) -> Any:
    return getattr(load(), f"hvdlite_{_words(kind)}_stateful" if stateful else f"hvdlite_{_words(kind)}")


def _words(kind: str) -> str:
    """The name of the op in Python: ``"grouped_allreduce"`` for ``"GroupedAllreduce"``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()
