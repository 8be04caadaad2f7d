"""The modules that the finder serves by Horovod's names, for tests in one process and for those of TensorFlow's ranks."""

import importlib
import sys

import pytest

import hvdlite.horovod
from hvdlite.horovod.finder import DOORS, HorovodFinder, own_name

SERVED = {
    "horovod": "hvdlite.horovod",
    "horovod.common": "hvdlite.horovod.common",
    "horovod.common.basics": "hvdlite.horovod.common.basics",
    "horovod.common.elastic": "hvdlite.horovod.common.elastic",
    "horovod.common.exceptions": "hvdlite.horovod.common.exceptions",
    "horovod.common.process_sets": "hvdlite.horovod.common.process_sets",
    "horovod.common.util": "hvdlite.horovod.common.util",
    "horovod.data": "hvdlite.horovod.data",
    "horovod.data.data_loader_base": "hvdlite.horovod.data.data_loader_base",
    "horovod.keras": "hvdlite.keras",
    "horovod.keras.callbacks": "hvdlite.keras.callbacks",
    "horovod.keras.elastic": "hvdlite.keras.elastic",
    "horovod.runner": "hvdlite.horovod.runner",
    "horovod.runner.common.util.env": "hvdlite.horovod.runner.common.util.env",
    "horovod.runner.util.threads": "hvdlite.horovod.runner.util.threads",
    "horovod.tensorflow": "hvdlite.tensorflow",
    "horovod.tensorflow.compression": "hvdlite.tensorflow.compression",
    "horovod.tensorflow.elastic": "hvdlite.tensorflow.elastic",
    "horovod.tensorflow.functions": "hvdlite.tensorflow.functions",
    "horovod.tensorflow.keras": "hvdlite.tensorflow.keras",
    "horovod.tensorflow.keras.callbacks": "hvdlite.tensorflow.keras.callbacks",
    "horovod.tensorflow.keras.elastic": "hvdlite.tensorflow.keras.elastic",
    "horovod.tensorflow.mpi_ops": "hvdlite.tensorflow.mpi_ops",
    "horovod.tensorflow.sync_batch_norm": "hvdlite.tensorflow.sync_batch_norm",
    "horovod.tensorflow.util": "hvdlite.tensorflow.util",
    "horovod.torch": "hvdlite.torch",
    "horovod.torch.compression": "hvdlite.torch.compression",
    "horovod.torch.elastic": "hvdlite.torch.elastic",
    "horovod.torch.elastic.sampler": "hvdlite.torch.elastic.sampler",
    "horovod.torch.elastic.state": "hvdlite.torch.elastic.state",
    "horovod.torch.functions": "hvdlite.torch.functions",
    "horovod.torch.mpi_ops": "hvdlite.torch.mpi_ops",
    "horovod.torch.optimizer": "hvdlite.torch.optimizer",
    "horovod.torch.sync_batch_norm": "hvdlite.torch.sync_batch_norm",
}


@pytest.fixture
def shim():
    """The finder in this process, for one test."""
    finder = HorovodFinder()
    sys.meta_path.insert(0, finder)
    yield
    sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]
    for door in DOORS:
        vars(hvdlite.horovod).pop(door, None)


def needs_tensorflow(name: str) -> bool:
    """Does the import of this module import TensorFlow?"""
    return bool({"tensorflow", "keras"} & set(name.split(".")))


def check_that_both_names_are_one_module(name: str) -> None:
    """Imports a module of SERVED by either name, where its framework is installed."""
    for door in set(DOORS) & set(name.split(".")):
        pytest.importorskip(door)
    assert own_name(name) == SERVED[name]
    module = importlib.import_module(name)
    assert module is sys.modules[name] is importlib.import_module(SERVED[name])
    assert module.__name__ == module.__spec__.name == SERVED[name]
    assert module.__spec__.loader is module.__loader__
    parent, _, child = name.rpartition(".")
    assert not parent or getattr(sys.modules[parent], child) is module
