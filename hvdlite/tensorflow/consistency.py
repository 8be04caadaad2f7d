"""`check_consistency` for TensorFlow: compares variables, models and optimizers of all ranks (`hvdlite.consistency`)."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvdlite.agreement import name_of
from hvdlite.consistency import ConsistencyChecker, RankComparison, check_objects, leaves_of_arguments, variables_to_compare
from hvdlite.elastic.kept import is_variable
from hvdlite.errors import UnsupportedError
from hvdlite.leaves import Leaf, leaves_in
from hvdlite.process_sets import ProcessSet, global_process_set, root_of
from hvdlite.tensorflow.autograph import as_written
from hvdlite.tensorflow.functions import broadcast_calls
from hvdlite.tensorflow.variables import of_tensorflow


@as_written
def check_consistency(
    *objects: Any, every: int | None = None, buffers: bool = False, process_set: ProcessSet = global_process_set
) -> ConsistencyChecker | None:
    """Checks that all ranks hold the same values, bit by bit. Collective over `process_set`. Call it eagerly.

    NaN and infinities are compared by their bits, too. Nothing is changed. Variables on GPUs are copied to host memory, which
    must hold all these copies at the same time; other variables are not copied.

    Args:
        objects: the objects to compare: models and layers of Keras and modules of TensorFlow (their weights, frozen ones too),
            optimizers of Keras (all their variables), variables, tensors, arrays, numbers, and dicts, lists and tuples of
            these. Variables are paired by their order, because their names differ if a rank has made more models than others.
        every: None: compare now. A number: return a checker that compares once in this number of training steps; call its
            ``step()`` after each step, outside of any ``tf.function``. In ``fit`` use
            `hvdlite.keras.callbacks.ConsistencyCheckCallback`.
        buffers: True: also compare those variables of models that no gradient changes. Such variables usually differ, because
            moving averages, such as those of batch normalization, are computed from a rank's own batches.
        process_set: the ranks to compare. The call does nothing on a rank that is not a member.

    Returns:
        None; with `every` a `hvdlite.consistency.ConsistencyChecker`.

    Raises:
        MismatchError, InvalidArgumentError, HorovodInternalError: as for `hvdlite.check_consistency`.
        UnsupportedError: it was called while a graph is made; the variables of a graph have no values then.

    """
    if not tf.executing_eagerly():
        raise UnsupportedError(
            "check_consistency reads values, but a graph has none while it is made: call it outside of tf.function"
        )

    def remedy(among: ProcessSet) -> str:
        return f"{broadcast_calls(among)} give all ranks the values of rank {root_of(among)}"

    def leaves(given: Sequence[Any]) -> Iterable[tuple[str, Leaf]]:
        return leaves_of_arguments(given, lambda value, path: _find(value, path, buffers))

    return check_objects(objects, every, RankComparison(leaves, process_set, remedy, named=False))


def _find(value: Any, path: str, buffers: bool) -> Iterable[Leaf] | None:
    """See `hvdlite.leaves.FindLeaves`."""
    if isinstance(value, tf.Tensor):
        return leaves_in(np.asarray(value), path, lambda *_: None)
    if is_variable(value):
        # No copy: the tensor and the array use the memory of the variable.
        array = np.asarray(of_tensorflow(value).read_value())
        return leaves_in(array, path or name_of(value), lambda *_: None)
    if hasattr(value, "trainable_variables"):
        variables = variables_to_compare(value, buffers)
    elif hasattr(value, "variables"):  # an optimizer; in older ones `variables` is a method
        variables = value.variables() if callable(value.variables) else value.variables
    else:
        return None
    return (leaf for variable in variables for leaf in _find(variable, "", buffers) or ())
