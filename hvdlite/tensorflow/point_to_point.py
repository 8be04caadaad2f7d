"""`hvdlite.send` and `hvdlite.recv` for TensorFlow's eager tensors, with gradients.

In ``tape.gradient`` a send becomes a receive of the gradient, and a receive becomes a send. Messages are sent and received
eagerly, so only the parts of a model between the messages may be functions (``tf.function``). A tensor on a GPU is copied
through host memory.

A tape does not know which of a rank's messages came first. If a rank both sends and receives, add the zero that `send` returns
to the `like` of the next `recv`: then the tape exchanges the gradients in the reverse order.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from hvdlite import point_to_point
from hvdlite.errors import UnsupportedError
from hvdlite.point_to_point import Envelope, Received
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.tensors import as_tensor

__all__ = ["recv", "send"]


@as_written
def send(
    tensor: Any, dst: int, tag: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """`hvdlite.send` with a gradient: if a tape watches the tensor, the receiver sends the gradient back.

    Args:
        tensor: a tensor of any shape, or a value that ``tf.convert_to_tensor`` converts.
        dst: the receiver's rank in the whole job.
        tag: as for `hvdlite.send`.
        name: as for `hvdlite.send`.
        process_set: as for `hvdlite.send`.

    Returns:
        A zero of the tensor's dtype. Add it to the loss that is differentiated, or to the `like` of the next `recv`. Then the
        tape receives the gradient; the receiver must differentiate its `recv` as well.

    Raises:
        UnsupportedError: the call is part of a graph, such as a ``tf.function``; or (in ``tape.gradient``) the received
            gradient is differentiated again.
        InvalidArgumentError, MismatchError, HorovodInternalError: as for `hvdlite.send`.

    """
    _require_eager("send")
    message = Envelope(dst, tag, name, process_set)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def sent(tensor: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        point_to_point.send(np.asarray(tensor), *message)
        return tf.zeros([], tensor.dtype), lambda _zero: _once(lambda: _received(tensor, *message.back), tensor)

    return sent(as_tensor("send", tensor, name))


@as_written
def recv(
    like: Any,
    src: int | None = None,
    tag: int | None = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`hvdlite.recv` with a gradient, into a new tensor: if a tape watches `like`, the gradient goes back to the sender.

    Args:
        like: a tensor with the shape and dtype of the message; its values are not used. For a gradient, call
            ``tape.watch(like)``, and make `like` one of the sources of ``tape.gradient``.
        src: the sender's rank in the whole job; None: any rank of the process set.
        tag: as for `hvdlite.recv`.
        name: as for `hvdlite.recv`.
        process_set: as for `hvdlite.recv`.

    Returns:
        The tensor that was received; if `src` or `tag` is None, a `Received` with the tensor, its sender and its tag.

    Raises:
        UnsupportedError: as for `send`; or a tape asks for the gradient, and `src` or `tag` is None.
        InvalidArgumentError, MismatchError, HorovodInternalError: as for `hvdlite.recv`.

    """
    _require_eager("recv")
    ends: list[Received] = []

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def received(like: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        output = _received(like, src, tag, name, process_set)
        if isinstance(output, Received):
            ends.append(output)
            output = output.tensor

        def backward(gradient: tf.Tensor) -> tf.Tensor:
            message = Envelope.of_receive(src, tag, name, process_set)
            return _once(lambda: _answered(gradient, message.back), gradient)

        return output, backward

    output = received(as_tensor("recv", like, name))
    return ends[0]._replace(tensor=output) if ends else output


def _received(like: tf.Tensor, *message: Any) -> Any:
    """What `hvdlite.recv` returns, with a new tensor of the shape and dtype of `like`."""
    received = point_to_point.recv(np.empty(like.shape, like.dtype.as_numpy_dtype), *message)
    if isinstance(received, Received):
        return received._replace(tensor=tf.convert_to_tensor(received.tensor))
    return tf.convert_to_tensor(received)


def _answered(gradient: tf.Tensor, message: Envelope) -> tf.Tensor:
    """Sends the gradient. Returns zeros, the gradient of recv's argument `like`, because the values of `like` are not used."""
    point_to_point.send(np.asarray(gradient), *message)
    return tf.zeros_like(gradient)


def _once(make: Callable[[], tf.Tensor], source: tf.Tensor) -> tf.Tensor:
    """The result of `make`. Differentiating it again raises an error, because the derivative would be on the other rank."""

    def refuse(*_: tf.Tensor) -> NoReturn:
        raise UnsupportedError("a message between two ranks can be differentiated once only")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def made(_source: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        return make(), refuse

    return made(source)


def _require_eager(function: str) -> None:
    """Raises UnsupportedError while a graph is made, because tensors of a graph have no values then."""
    if not tf.executing_eagerly():
        raise UnsupportedError(
            f"{function} works eagerly only, and this is a graph: call it between functions, outside of tf.function; or, "
            "without a gradient, call hvdlite.send and hvdlite.recv with NumPy arrays in a tf.py_function"
        )
