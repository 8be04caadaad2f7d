"""Loads a saved model to go on training it on all ranks."""

from collections.abc import Iterable, Mapping
from typing import Any

from hvdlite.compression import Compression
from hvdlite.keras.library import keras
from hvdlite.keras.optimizer import DistributedOptimizer

__all__ = ["load_model"]


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type[Any]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model and wraps its optimizer, as `DistributedOptimizer` does. The optimizer keeps its state.

    Any saved model will do, of this or of one process. Call it on all ranks. A rank that loads a model alone has to broadcast
    it; `BroadcastGlobalVariablesCallback` does.

    Args:
        filepath: as for ``keras.models.load_model``.
        custom_optimizers: classes of optimizers of your own.
        custom_objects: as for ``keras.models.load_model``.
        compression: as for `DistributedOptimizer`.
        legacy_opts: accepted for compatibility with Horovod; not used: Keras knows which kind of optimizer it has saved.

    Returns:
        The model. If it was saved with an optimizer, that is wrapped.

    Raises:
        InvalidArgumentError, NotInitializedError, UnsupportedError: as for `DistributedOptimizer`.
        Whatever Keras raises for a file that it cannot load.
    """
    del legacy_opts
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        DistributedOptimizer(optimizer, compression=compression, auto_scale_loss=False)
    return model
