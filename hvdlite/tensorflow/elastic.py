"""``horovod.tensorflow.elastic``: the state of a training, committed, restored and synchronised. See docs/elastic.md."""

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from hvdlite import elastic, xla
from hvdlite.basics import rank
from hvdlite.elastic import ObjectState
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


# What TensorFlow makes of the errors after which elastic training begins again (see `hvdlite.errors.ERRORS`).
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
        self._saved_values: list[Any] = []
        self._sync_operation: Any = None
        super().__init__(broadcast_object, rank, **kwargs)
        self._save_values()

    def save(self) -> None:
        """Copies variables and attributes, for `restore`."""
        self._save_values()
        super().save()

    def restore(self) -> None:
        """Sets variables and attributes to copies of what was saved last."""
        for variable, value in zip(self.variables, self._saved_values, strict=True):
            if self.session is None:
                variable.assign(value)
            else:
                variable.load(value, self.session)
        super().restore()

    def sync(self) -> None:
        """Sets variables and attributes to what they are on rank 0 at present, and saves them. Collective over all ranks."""
        if self.session is None:
            broadcast_variables(self.variables, root_rank=0)
        else:
            if self._sync_operation is None:
                with self.session.graph.as_default():
                    self._sync_operation = broadcast_variables(self.variables, root_rank=0)
            self.session.run(self._sync_operation)
        self._save_values()
        super().sync()

    def _save_values(self) -> None:
        if self.session is None:
            self._saved_values = [np.array(variable.numpy()) for variable in self.variables]
        else:
            self._saved_values = self.session.run(self.variables)


def __getattr__(name: str) -> Any:
    # The only name that needs Keras, whose import takes long.
    if name == "TensorFlowKerasState":
        from hvdlite.tensorflow.keras.state import TensorFlowKerasState

        return TensorFlowKerasState
    raise AttributeError(f"module 'hvdlite.tensorflow.elastic' has no attribute {name!r}")
