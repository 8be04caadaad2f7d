"""Reduces gradients, for the tape, for optimizers of ``tf.compat.v1.train`` and for Keras on TensorFlow.

- In a graph each gradient has its own operation, unless the user groups them. An operation is in flight as soon as the gradient
  is computed, and the engine fuses operations that arrive together.
- Eagerly an operation ends before the next one begins, so all dense gradients are in one group, unless the user groups them.
- XLA runs operations one after another, in an order that XLA chooses, so all gradients are in one call.

When TensorFlow traces a training step, it is known which gradients are None. A gradient that is None is not sent, and stays
None. The same gradients must be None on all ranks. Otherwise some ranks wait for a tensor that other ranks never send, and the
engine reports a deadlock (docs/sharp_edges.md).
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvdlite.compression import Compression, split
from hvdlite.errors import InvalidArgumentError
from hvdlite.partition import partition
from hvdlite.process_sets import ProcessSet, global_process_set
from hvdlite.requests import Average, Kind
from hvdlite.tensorflow import collective_ops
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.names import collective_name
from hvdlite.tensorflow.sparse import allreduce_slices
from hvdlite.tensorflow.tensors import settle_for_dense
from hvdlite.tensorflow.xla import in_xla_context

Gradient = Any  # tf.Tensor, tf.IndexedSlices or None


@as_written
def allreduce_gradients(
    gradients: Sequence[Gradient],
    names: Sequence[str],
    *,
    op: int = Average,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    groups: Sequence[Sequence[int]] | None = None,
    process_set: ProcessSet = global_process_set,
    scoped: bool = True,
    weight: tf.Tensor | None = None,
) -> list[Gradient]:
    """Reduces the gradients of one training step. Collective over `process_set`.

    Args:
        gradients: tensors and IndexedSlices, with the same shapes and dtypes on all ranks (IndexedSlices may differ in the
            number of rows). The same gradients are None on all ranks.
        names: one name for each gradient, the same on all ranks.
        op: Average, Sum or Adasum. For IndexedSlices Average or Sum.
        prescale_factor: a factor for each rank's gradients.
        postscale_factor: a factor for the results.
        compression: a class with the methods of `hvdlite.compression.Compressor`, a codec, or `Compression.auto`.
        sparse_as_dense: True: make IndexedSlices dense. Under XLA they are always made dense, because XLA has no tensors of
            varying size.
        groups: lists of indices of `gradients`. The dense gradients of a list are agreed on and sent together; a gradient in no
            list is sent alone. An index is in one list at most. None: see the docstring of the module.
        process_set: the ranks that take part.
        scoped: as for `hvdlite.tensorflow.names.collective_name`.
        weight: the weight of this rank in a weighted mean, from `hvdlite.tensorflow.tensors.as_weight`. Either all ranks give a
            weight, or none.

    Returns:
        The reduced gradients in order; a gradient that is None stays None. On a rank outside of `process_set`: `gradients`.

    Raises:
        InvalidArgumentError: a gradient is no tensor, no IndexedSlices and not None; or the process set is not registered.
        UnsupportedError: for IndexedSlices that stay sparse, the op is not Average or Sum, `compression` is a codec, or the op
            is Average and the values are integers; or `compression` cannot be used here.
        tf.errors.OpError: (when it runs) the collective failed, see docs/errors.md.

    """
    if process_set.included() is False:
        return list(gradients)
    set_id = process_set.require_member(Kind.ALLREDUCE)
    keeps_slices = not (sparse_as_dense or in_xla_context())
    sparse = [place for place, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices) and keeps_slices]
    dense = {
        place: _dense(gradient, names[place])
        for place, gradient in enumerate(gradients)
        if gradient is not None and place not in sparse
    }
    compression = settle_for_dense(compression, process_set, op, tuple(dense.values()), codes=not sparse)
    reduced = list(gradients)
    for place in sparse:
        reduced[place] = allreduce_slices(
            gradients[place],
            name=collective_name(names[place], scoped=scoped),
            op=op,
            factor=prescale_factor * postscale_factor,
            compression=compression,
            set_id=set_id,
            weight=weight,
        )
    compressor, codec = split(compression)
    together = in_xla_context() or (groups is None and tf.executing_eagerly())
    for places in partition(None if together else groups or (), list(dense)):
        sent, contexts = zip(*(compressor.compress(dense[place]) for place in places), strict=True)
        call: dict[str, Any] = {
            "name": collective_name(names[places[0]], scoped=scoped),
            "op": op,
            "prescale": prescale_factor,
            "postscale": postscale_factor,
            "set_id": set_id,
            "weight": weight,
            "codec": codec,
        }
        if len(sent) == 1:
            outputs = [collective_ops.allreduce(sent[0], **call)]
        else:
            outputs = collective_ops.grouped_allreduce(sent, **call)
        for place, output, context in zip(places, outputs, contexts, strict=True):
            reduced[place] = compressor.decompress(output, context)
    return reduced


def _dense(gradient: Gradient, name: str) -> tf.Tensor:
    if isinstance(gradient, tf.IndexedSlices | tf.Tensor):
        return tf.convert_to_tensor(gradient)
    raise InvalidArgumentError(
        f"the gradient of {name!r} is a {type(gradient).__name__}: only tf.Tensor, tf.IndexedSlices and None can be reduced"
    )
