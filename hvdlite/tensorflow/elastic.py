"""``horovod.tensorflow.elastic``: the state of a training, which it commits, restores and synchronises. See docs/elastic.md."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from hvdlite import elastic, xla
from hvdlite.basics import rank
from hvdlite.elastic import ObjectState
from hvdlite.elastic.kept import StateHandler, has_variables, is_variable
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
    """As `hvdlite.elastic.run`; errors of TensorFlow that mean a lost rank are raised as HorovodInternalError first.

    All others leave it as they are, those where ranks ask for different things (FailedPreconditionError,
    DeadlineExceededError) too: another run would ask for the same.
    """
    return elastic.run(func, loss_in)


# The errors of TensorFlow for those after which elastic training continues (see `hvdlite.errors.ERRORS`).
_LOSSES: list[tuple[type[Exception], type[HorovodInternalError]]] = [
    (tf.errors.AbortedError, AbortedError),
    (tf.errors.UnknownError, SystemFailure),
    (tf.errors.InternalError, InternalError),
]
_OWN_TEXT = re.compile(
    r"(allreduce|allgather|broadcast|alltoall|reducescatter|barrier|join)\b.* in process set \d|Horovod has been shut down"
)


def loss_in(error: Exception) -> HorovodInternalError | None:
    """The error of hvdlite behind one of TensorFlow, if it means that a rank is lost."""
    if failure_in(error) is not None:
        return xla.loss_in(error)
    found = next((own for theirs, own in _LOSSES if isinstance(error, theirs)), None)
    text = str(getattr(error, "message", ""))
    if found is None or not _OWN_TEXT.search(text):
        return None
    engine = RUNTIME.engine
    return PeerLostError(text) if engine is not None and engine.failure_cause else found(text)


class TensorFlowState(ObjectState):
    """Keeps variables, and Python objects, which are its attributes.

    Other variables, modules, and Keras's models, layers, optimizers and metrics stay the objects they are, wherever attributes
    refer to them; their variables are saved, restored and sent.

    Args:
        variables: ``tf.Variable``, of v1 or of Keras; None: the global variables of the v1 graph.
        session: of ``tf.compat.v1``, in v1 graphs; None: the default session.
        **kwargs: names and first values of the attributes.

    Raises:
        InvalidArgumentError: there are no variables, or no session in a v1 graph, or a name is one of the state's own methods.

    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        found = tf.compat.v1.global_variables() if variables is None else variables
        self.variables = [of_tensorflow(variable) for variable in found]
        if not self.variables:
            raise InvalidArgumentError("TensorFlowState has no variables to keep: pass them, such as model.variables")
        self.session = None if tf.executing_eagerly() else session or tf.compat.v1.get_default_session()
        if self.session is None and not tf.executing_eagerly():
            raise InvalidArgumentError("TensorFlowState needs a session in a v1 graph: pass it, or make it the default one")
        self._handler = _VariablesHandler(self.variables, self.session)
        self._handler.save()
        super().__init__(broadcast_object, rank, **kwargs)

    def save(self) -> None:
        """Copies variables and attributes, for `restore`."""
        self._handler.save()
        super().save()

    def restore(self) -> None:
        """Sets variables and attributes to copies of the last saved values."""
        self._handler.restore()
        super().restore()

    def sync(self) -> None:
        """Sets variables and attributes to rank 0's present values, and saves them. Collective over all ranks."""
        self._handler.sync()
        super().sync()

    def _handler_of(self, value: Any) -> StateHandler | None:
        if not (has_variables(value) or isinstance(value, tf.Module)):
            return None
        return _VariablesHandler(value, self.session)


class _VariablesHandler(StateHandler):
    """Of a list of variables, a single one, or what has some: a module, or a model, layer, optimizer or metric of Keras."""

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
    # The only name that needs Keras, whose import takes long.
    if name == "TensorFlowKerasState":
        from hvdlite.tensorflow.keras.state import TensorFlowKerasState

        return TensorFlowKerasState
    raise AttributeError(f"module 'hvdlite.tensorflow.elastic' has no attribute {name!r}")
