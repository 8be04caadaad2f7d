"""Allreduce and broadcast inside programs that XLA compiles (``jit_compile=True``). XLA cannot compile the ops of a library.

Instead of ops, XLA has *custom calls*: functions that get the addresses of buffers. hvdlite registers its custom calls through
a part of TensorFlow that is not public. So hvdlite tests them once, and if they do not work, an error names the setting that
avoids them.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.requests import OP_NAMES, Kind, Max, Min, Product, Sum
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.library import LIBRARY, load
from hvdlite.tensorflow.tensors import is_inexact, shares_of
from hvdlite.xla import TensorGroup, describe

_REMEDY = "set jit_compile=False (an argument of model.compile in Keras, and of tf.function)"
_SELF_TEST_TEXT = "hvdlite's self-test"

# The attribute of a graph that holds a token: a result of the graph's last custom call. The token is an operand of the next
# call, so XLA cannot change the order of the calls. (A table by graph would keep graphs alive through their tensors. A
# collection of the graph is shared with the graphs of its branches.)
_LAST = "_hvdlite_last_call"


def in_xla_context() -> bool:
    """Whether the function that is being traced will be compiled by XLA."""
    return not tf.executing_eagerly() and bool(GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def require_no_xla(what: str) -> None:
    """Refuses the operation `what` in a function for XLA.

    Raises:
        UnsupportedError: the function that is being traced will be compiled by XLA.

    """
    if in_xla_context():
        raise UnsupportedError(f"{what} cannot be compiled by XLA, only allreduce and grouped_allreduce can: {_REMEDY}")


@as_written
def grouped_allreduce(tensors: Sequence[Any], group: TensorGroup, weight: tf.Tensor | None = None) -> list[tf.Tensor]:
    """Reduces tensors in one custom call, in a graph for XLA. The call blocks the program, so pass all tensors in one call.

    If the call fails, the program raises ``tf.errors.InternalError``, and `hvdlite.xla.failure_in` returns the error of hvdlite
    for it. With Average, Sum and Adasum the gradient is the same reduction of the incoming gradients. For a weighted mean it is
    the sum of the incoming gradients, times this rank's share of all weights. Min, Max and Product have no gradient.

    Args:
        tensors: tensors of any dtype of `hvdlite.dtypes`, with static shapes.
        group: says how the tensors are reduced. Its own list of dtypes and shapes is replaced by those of the tensors.
        weight: if the group is weighted, the weight of this rank, a float64 scalar.

    Returns:
        The results in order, with the shapes and dtypes of the tensors.

    Raises:
        InvalidArgumentError: a shape is not known when the program is traced, or a dtype or the name cannot be sent.
        UnsupportedError: custom calls of this TensorFlow do not work for hvdlite, or TensorFlow uses GPUs.

    """
    if not tensors:
        return []
    _require()
    made = [tf.convert_to_tensor(tensor) for tensor in tensors]
    for tensor in made:
        if not tensor.shape.is_fully_defined():
            raise InvalidArgumentError(
                f"allreduce of {group.name!r} in a program for XLA: the shape of {tensor.name} must be known when the program "
                f"is traced, but is {tensor.shape}; give it a static shape (tf.ensure_shape), or {_REMEDY}"
            )
    kinds = [(tensor.dtype.name, tensor.shape.as_list()) for tensor in made]
    description = describe([replace(group, tensors=kinds)])

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def reduce(*operands: Any) -> Any:
        def backward(*gradients: Any) -> list[Any]:
            if group.op in (Min, Max, Product):
                raise UnsupportedError(
                    f"allreduce with op={OP_NAMES[group.op]} has no gradient in a program for XLA: {_REMEDY}"
                )
            places = [place for place, tensor in enumerate(made) if is_inexact(tensor)]
            mine = [gradients[place] for place in places]
            unique = tf.compat.v1.get_default_graph().unique_name(f"{group.name}.grad")
            op = group.op if weight is None else Sum
            reduced = grouped_allreduce(mine, replace(group, name=unique, op=op, weighted=False))
            if weight is not None:
                total = TensorGroup(Kind.ALLREDUCE, f"{unique}.weights", process_set=group.process_set)
                (weights,) = grouped_allreduce([weight], total)
                reduced = shares_of(reduced, weight, weights)
            found = dict(zip(places, reduced, strict=True))
            return [found.get(place) for place in range(len(made))]

        return _call(operands, description, weight), backward

    results: list[tf.Tensor] = list(reduce(*made))
    return results


def broadcast_from(tensors: Sequence[Any], roots: Sequence[int], names: Sequence[str], set_id: int) -> list[tf.Tensor]:
    """Broadcasts each tensor from its root in `roots`, all in one custom call, in a graph for XLA. There is no gradient."""
    _require()
    groups = [
        TensorGroup(Kind.BROADCAST, name, [(tensor.dtype.name, tensor.shape.as_list())], root=root, process_set=set_id)
        for tensor, root, name in zip(tensors, roots, names, strict=True)
    ]
    return _call(tensors, describe(groups))


def _call(operands: Sequence[tf.Tensor], description: str, weight: tf.Tensor | None = None) -> list[tf.Tensor]:
    graph = tf.compat.v1.get_default_graph()
    last = getattr(graph, _LAST, None)
    if last is None:
        last = tf.zeros([], tf.int32)
    inputs = [*operands, last] if weight is None else [*operands, weight, last]
    *results, token = _custom_call("hvdlite_collective", inputs, description, [*operands, last])
    setattr(graph, _LAST, token)
    return results


def _custom_call(
    target: str, operands: Sequence[tf.Tensor], config: str, like: Sequence[tf.Tensor] | None = None
) -> list[tf.Tensor]:
    """Makes a custom call. Its results have the dtypes and shapes of the tensors `like`, or of the operands."""
    like = operands if like is None else like
    return list(
        gen_xla_ops.xla_custom_call_v2(
            operands,
            call_target_name=target,
            backend_config=config,
            has_side_effect=True,
            result_dtypes=[tensor.dtype for tensor in like],
            result_shapes=[tensor.shape for tensor in like],
        )
    )


@cache
def _require() -> None:
    """Registers the custom calls and tests them, once in a process.

    Raises:
        UnsupportedError: custom calls do not work for hvdlite, or TensorFlow uses GPUs.
    """
    if tf.config.list_logical_devices("GPU"):
        raise UnsupportedError(f"collectives in programs that XLA compiles work on CPUs only: {_REMEDY}")
    load()  # before the CDLL below: TensorFlow looks for ops when the process opens the library for the first time
    if not ctypes.CDLL(str(LIBRARY)).hvdlite_tensorflow_register_xla():
        raise UnsupportedError(
            f"TensorFlow {tf.__version__} does not let hvdlite register custom calls with its XLA, so collectives cannot be "
            f"compiled: {_REMEDY}"
        )
    with tf.init_scope(), tf.device("/CPU:0"):
        if not _works():
            raise UnsupportedError(
                f"custom calls of TensorFlow {tf.__version__}'s XLA do not work as hvdlite expects, so collectives cannot be "
                f"compiled: {_REMEDY}"
            )


def _works() -> bool:
    def swap(config: str) -> list[int]:
        program = tf.function(lambda a, b: _custom_call("hvdlite_self_test", [a, b], config), jit_compile=True, autograph=False)
        return [int(result) for result in program(tf.constant(3), tf.constant(5))]

    if swap("") != [5, 3]:
        return False
    try:
        swap(_SELF_TEST_TEXT)
    except tf.errors.OpError as error:
        return _SELF_TEST_TEXT in str(error)
    return False
