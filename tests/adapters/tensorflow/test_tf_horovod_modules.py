"""Horovod's names of the modules of TensorFlow and Keras, where TensorFlow is imported already (unit/test_horovod_shim.py)."""

import importlib

import pytest
from support.horovod_modules import SERVED, check_that_both_names_are_one_module, needs_tensorflow, shim

from hvdlite.horovod.finder import UnsupportedModuleError

__all__ = ["shim"]

pytest.importorskip("tensorflow")

MORE_RANKS = ()


@pytest.mark.parametrize("name", [name for name in SERVED if needs_tensorflow(name)])
def test_a_module_is_the_same_object_under_both_names(shim, name):
    check_that_both_names_are_one_module(name)


def test_a_module_that_hvdlite_has_not_is_refused_by_name(shim):
    name = "horovod.tensorflow.gradient_aggregation"
    with pytest.raises(UnsupportedModuleError, match=f"does not offer the module {name}: .*backward_passes_per_step") as caught:
        importlib.import_module(name)
    assert caught.value.name == name
