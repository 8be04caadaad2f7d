"""`hvdlite.send` and `hvdlite.recv` for JAX arrays outside of compiled programs, with gradients.

In the backward pass a send becomes a receive, and a receive becomes a send. `jax.grad` runs both outside of compiled programs,
so only the parts of a model between the messages may be compiled.

JAX does not know which of a rank's messages came first. If a rank both sends and receives, add the zero that `send` returns to
the `like` of the next `recv`: then the backward pass takes the messages in the reverse order.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvdlite import point_to_point
from hvdlite.errors import UnsupportedError
from hvdlite.jax.ffi import require_cpu
from hvdlite.point_to_point import Envelope, Received
from hvdlite.process_sets import ProcessSet, global_process_set


def send(
    array: Any, dst: int, tag: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set
) -> jax.Array:
    """`hvdlite.send` with a gradient: where JAX differentiates the array, the receiver sends the gradient back.

    Args:
        array: an array of any shape and dtype, or an object that JAX converts to one.
        dst: the receiver's rank in the whole job.
        tag: as for `hvdlite.send`.
        name: as for `hvdlite.send`.
        process_set: as for `hvdlite.send`.

    Returns:
        A zero of the array's dtype. Add it to the loss that is differentiated, or to the `like` of the next `recv`. Then the
        backward pass receives the gradient; the receiver must differentiate its `recv` as well.

    Raises:
        UnsupportedError: the call is part of a compiled program, of `jax.vmap` or of a second derivative; or JAX's default
            device is no CPU.
        InvalidArgumentError, MismatchError, HorovodInternalError: as for `hvdlite.send`.

    """
    require_cpu()
    return _send(Envelope(dst, tag, name, process_set), jnp.asarray(array))


def recv(
    like: Any,
    src: int | None = None,
    tag: int | None = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`hvdlite.recv` with a gradient, into a new array: where JAX differentiates `like`, the gradient goes to the sender.

    Args:
        like: an array with the shape and dtype of the message; its values are not used. For a gradient, make it an argument
            of the function that is differentiated: ``jax.grad(loss, argnums=(0, 1))(weights, like)``.
        src: the sender's rank in the whole job; None: any rank of the process set.
        tag: as for `hvdlite.recv`.
        name: as for `hvdlite.recv`.
        process_set: as for `hvdlite.recv`.

    Returns:
        The array that was received; if `src` or `tag` is None, a `Received` with the array, its sender and its tag.

    Raises:
        UnsupportedError: as for `send`; or JAX differentiates `like`, and `src` or `tag` is None.
        InvalidArgumentError, MismatchError, HorovodInternalError: as for `hvdlite.recv`.

    """
    require_cpu()
    like = jnp.asarray(like)
    if isinstance(like, jax.core.Tracer) or not (src is None or tag is None):
        return _recv(Envelope.of_receive(src, tag, name, process_set), like)
    received = point_to_point.recv(np.empty(like.shape, like.dtype), src, tag, name, process_set)
    return Received(jnp.asarray(received.tensor), received.source, received.tag)


def _send_now(message: Envelope, array: jax.Array) -> jax.Array:
    point_to_point.send(_values(array), *message)
    return jnp.zeros((), array.dtype)


def _recv_now(message: Envelope, like: jax.Array) -> jax.Array:
    values = _values(like)
    return jnp.asarray(point_to_point.recv(np.empty(values.shape, values.dtype), *message))


def _send_backward(message: Envelope, like: jax.Array, _zero: jax.Array) -> tuple[jax.Array]:
    return (_recv_now(message.back, like),)


def _recv_backward(message: Envelope, like: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
    _send_now(message.back, gradient)
    return (jnp.zeros_like(like),)


# For the backward pass JAX keeps only an array with the shape and dtype of the message.
_send = jax.custom_vjp(_send_now, nondiff_argnums=(0,))
_recv = jax.custom_vjp(_recv_now, nondiff_argnums=(0,))
_send.defvjp(lambda message, array: (_send_now(message, array), array), _send_backward)
_recv.defvjp(lambda message, like: (_recv_now(message, like), like), _recv_backward)


def _values(array: jax.Array) -> jax.Array:
    """Returns the array if it has values. Raises UnsupportedError if it stands for values, as in a compiled program."""
    if isinstance(array, jax.core.Tracer):
        raise UnsupportedError(
            "send and recv need the values of an array, which do not exist inside of jax.jit, jax.vmap, loops such as "
            "jax.lax.scan, and second derivatives: call send or recv between compiled functions (jax.grad may contain it)"
        )
    return array
