"""hvdlite for Keras, on TensorFlow, torch or JAX, with the names of ``horovod.keras``.

    import keras
    import hvdlite.keras as hvd

    hvd.init()
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size())), loss="mse")
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)], verbose=hvd.rank() == 0)

The same module serves Keras 3 on these backends, Keras 2, and tf_keras if ``TF_USE_LEGACY_KERAS=1`` is set. This module
imports the framework that Keras runs on, and no other framework.
"""

from hvdlite import basics, process_sets, usage
from hvdlite.basics import *
from hvdlite.compression import Compression
from hvdlite.keras import callbacks, elastic, values
from hvdlite.keras.consistency import check_consistency
from hvdlite.keras.models import load_model
from hvdlite.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from hvdlite.keras.values import *
from hvdlite.keras.variables import broadcast_global_variables, broadcast_variables
from hvdlite.process_sets import *
from hvdlite.requests import Adasum, Average, Sum
from hvdlite.usage import *

__all__ = ["Adasum", "Average", "Compression", "Sum", "callbacks", "check_consistency", "elastic", "load_model"]
__all__ += ["DistributedOptimizer", "PartialDistributedOptimizer", "broadcast_global_variables", "broadcast_variables"]
__all__ += basics.__all__
__all__ += process_sets.__all__
__all__ += usage.__all__
__all__ += values.__all__
