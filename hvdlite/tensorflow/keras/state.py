"""`TensorFlowKerasState` of `hvdlite.tensorflow.elastic`, in its own module because it needs Keras."""

from typing import Any

from hvdlite.keras.elastic import KerasState


class TensorFlowKerasState(KerasState):
    """As `hvdlite.keras.elastic.KerasState`.

    Args:
        model: as for `hvdlite.keras.elastic.KerasState`.
        optimizer: as for `hvdlite.keras.elastic.KerasState`.
        backend: accepted for compatibility with Horovod; not used.
        **kwargs: as for `hvdlite.keras.elastic.KerasState`.

    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer, **kwargs)
