"""Loads a saved model, so that training can continue on all ranks."""

from collections.abc import Iterable, Mapping
from typing import Any

from hvdlite.compression import Compression
from hvdlite.keras.library import keras
from hvdlite.keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: Iterable[type[Any]] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Loads a model and wraps its optimizer, as `DistributedOptimizer` does. The optimizer keeps its state.

    The model may have been saved with or without hvdlite. Call this function on all ranks. A rank may also build the
    same model and wrap its optimizer; then broadcast the values of a rank that has loaded the file, for example with
    `BroadcastGlobalVariablesCallback`.

    Args:
        filepath: as for ``keras.models.load_model``.
        custom_optimizers: your own classes of optimizers.
        custom_objects: as for ``keras.models.load_model``.
        compression: as for `DistributedOptimizer`.
        legacy_opts: accepted for compatibility with Horovod; not used, because Keras knows the class of a saved optimizer.

    Returns:
        The model. If it was saved with an optimizer, the optimizer is wrapped.

    Raises:
        InvalidArgumentError, NotInitializedError, UnsupportedError: as for `DistributedOptimizer`.
        Errors of Keras, if Keras cannot load the file.
    """
    del legacy_opts
    objects = {kind.__name__: kind for kind in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        DistributedOptimizer(optimizer, compression=compression, auto_scale_loss=False)
    return model
