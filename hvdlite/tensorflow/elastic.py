"""``horovod.tensorflow.elastic``: commits, restores and synchronizes the state of a training. See docs/elastic.md."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from hvdlite import elastic, xla
from hvdlite.basics import rank
from hvdlite.elastic import ObjectState
from hvdlite.elastic.kept import StateHandler, all_or_none, has_variables, is_variable
from hvdlite.errors import (
    AbortedError,
    HorovodInternalError,
    InternalError,
    InvalidArgumentError,
    PeerLostError,
    SystemFailure,
)
from hvdlite.runtime import RUNTIME
from hvdlite.tensorflow.functions import broadcast_object, broadcast_variables
from hvdlite.tensorflow.variables import of_tensorflow
from hvdlite.xla import failure_in

if TYPE_CHECKING:
    from hvdlite.tensorflow.keras.state import TensorFlowKerasState

__all__ = ["TensorFlowKerasState", "TensorFlowState", "loss_in", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """As `hvdlite.elastic.run`. An error of TensorFlow that means that a rank is lost counts as HorovodInternalError.

    The function raises all other errors unchanged, mismatches of the ranks (FailedPreconditionError, DeadlineExceededError)
    too, because they would occur again in another run.
    """
    return elastic.run(func, loss_in)


# Pairs of an error of TensorFlow and the error of hvdlite that it stands for (see `hvdlite.errors.ERRORS`). After these errors
# elastic training continues, if `_OWN_TEXT` finds hvdlite's text in them.
_LOSSES: list[tuple[type[Exception], type[HorovodInternalError]]] = [
    (tf.errors.AbortedError, AbortedError),
    (tf.errors.UnknownError, SystemFailure),
    (tf.errors.InternalError, InternalError),
]
_OWN_TEXT = re.compile(
    r"(allreduce|allgather|broadcast|alltoall|reducescatter|barrier|join)\b.* in process set \d|Horovod has been shut down"
)


def loss_in(error: Exception) -> HorovodInternalError | None:
    """The HorovodInternalError that caused this error of TensorFlow; None: the error has another cause."""
    if failure_in(error) is not None:
        return xla.loss_in(error)
    found = next((own for theirs, own in _LOSSES if isinstance(error, theirs)), None)
    text = str(getattr(error, "message", ""))
    if found is None or not _OWN_TEXT.search(text):
        return None
    engine = RUNTIME.engine
    return PeerLostError(text) if engine is not None and engine.failure_cause else found(text)


class TensorFlowState(ObjectState):
    """Keeps variables and other objects. The other objects are attributes of the state.

    An attribute may also be another variable, a module, or a model, layer, optimizer or metric of Keras. Such an object is not
    replaced: its variables are saved, restored and broadcast in place.

    Args:
        variables: variables of TensorFlow (also of TensorFlow 1) or Keras; None: the global variables of the default v1 graph
            (a graph of TensorFlow 1).
        session: a session of ``tf.compat.v1``, for v1 graphs; None: the default session.
        **kwargs: names and first values of the attributes.

    Raises:
        InvalidArgumentError: there are no variables, a v1 graph has no session, or a name is that of a method of the state.

    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        found = tf.compat.v1.global_variables() if variables is None else variables
        self.variables = [of_tensorflow(variable) for variable in found]
        if not self.variables:
            raise InvalidArgumentError("TensorFlowState has no variables to keep: pass them, such as model.variables")
        self.session = None if tf.executing_eagerly() else session or tf.compat.v1.get_default_session()
        if self.session is None and not tf.executing_eagerly():
            raise InvalidArgumentError("TensorFlowState needs a session in a v1 graph: pass it, or make it the default session")
        self._handler = _VariablesHandler(self.variables, self.session)
        self._handler.save()
        super().__init__(broadcast_object, rank, **kwargs)

    def save(self) -> None:
        """Copies the values of variables and attributes, so that `restore` can set them to these values."""
        with all_or_none([self._handler]):
            self._handler.save()
            super().save()

    def restore(self) -> None:
        """Sets variables and attributes to copies of the last saved values."""
        self._handler.restore()
        super().restore()

    def sync(self) -> None:
        """Sets variables and attributes to rank 0's current values, and saves them. Collective over all ranks."""
        with all_or_none([self._handler]):
            self._handler.sync()
            super().sync()

    def _handler_of(self, value: Any) -> StateHandler | None:
        if not (has_variables(value) or isinstance(value, tf.Module)):
            return None
        return _VariablesHandler(value, self.session)


class _VariablesHandler(StateHandler):
    """Saves, restores and broadcasts variables.

    `value` is a list of variables, one variable, or an object with variables: a module, or a model, layer, optimizer or metric
    of Keras.
    """

    def __init__(self, value: Any, session: Any) -> None:
        super().__init__(value)
        self._session = session
        self._sync_operation: Any = None

    def save(self) -> None:
        variables = self._variables()
        if self._session is None:
            self._saved = [np.array(variable.numpy()) for variable in variables]
        else:
            self._saved = self._session.run(variables)

    def restore(self) -> None:
        variables = self._variables()
        if len(variables) != len(self._saved):
            raise InvalidArgumentError(
                f"{type(self.value).__name__} of an elastic state had {len(self._saved)} variables when it was saved, and has "
                f"{len(variables)} now: build it before it is saved"
            )
        for variable, value in zip(variables, self._saved, strict=True):
            if self._session is None:
                variable.assign(value)
            else:
                variable.load(value, self._session)

    def sync(self) -> None:
        variables = self._variables()
        if self._session is None:
            broadcast_variables(variables, root_rank=0)
        else:
            if self._sync_operation is None:
                with self._session.graph.as_default():
                    self._sync_operation = broadcast_variables(variables, root_rank=0)
            self._session.run(self._sync_operation)
        self.save()

    def _variables(self) -> list[Any]:
        if isinstance(self.value, list):
            return self.value
        found = [self.value] if is_variable(self.value) else self.value.variables
        return [of_tensorflow(variable) for variable in (found() if callable(found) else found)]


def __getattr__(name: str) -> Any:
    # Only this name needs Keras, and importing Keras takes long.
    if name == "TensorFlowKerasState":
        from hvdlite.tensorflow.keras.state import TensorFlowKerasState

        return TensorFlowKerasState
    raise AttributeError(f"module 'hvdlite.tensorflow.elastic' has no attribute {name!r}")
