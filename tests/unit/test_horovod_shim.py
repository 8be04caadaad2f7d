"""The finder that serves Horovod's module names: aliases, refusals, and a Horovod that is installed as well."""

import importlib
import importlib.util
import pickle
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.horovod_modules import SERVED, check_that_both_names_are_one_module, needs_tensorflow, shim
from support.job import job_environment

import hvdlite
import hvdlite.horovod
from hvdlite.config import from_environment
from hvdlite.errors import UnsupportedError
from hvdlite.horovod.finder import DOORS, REASONS, UnsupportedModuleError, own_name

__all__ = ["shim"]


def run(program, *paths, env=None):
    """Runs a program's text in a new interpreter that finds modules in these folders too."""
    environment = job_environment(env)
    environment["PYTHONPATH"] = ":".join([*map(str, paths), environment["PYTHONPATH"]])
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, timeout=120
    )


# --- aliases --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SERVED if not needs_tensorflow(name)])  # those are in adapters/tensorflow
def test_a_module_is_the_same_object_under_both_names(shim, name):
    check_that_both_names_are_one_module(name)


def test_every_form_of_import(shim):
    pytest.importorskip("torch")
    import horovod.torch as hvd
    from horovod import torch as door
    from horovod.common import util
    from horovod.torch import mpi_ops
    from horovod.torch.mpi_ops import allreduce

    assert hvd is door is hvdlite.torch
    assert hvd.mpi_ops is mpi_ops
    assert mpi_ops.allreduce is allreduce is hvdlite.torch.allreduce
    assert util.split_list([1, 2, 3], 2) == [[1, 2], [3]]
    names = {}
    exec("from horovod.torch import *", names)
    assert names["DistributedOptimizer"] is hvdlite.torch.DistributedOptimizer


def test_a_module_can_be_reloaded(shim):
    module = importlib.import_module("horovod.common.process_sets")
    assert importlib.reload(module) is module
    assert module.__spec__.name == "hvdlite.horovod.common.process_sets"


def test_specs_name_the_file_before_and_after_the_import(shim):
    for _ in range(2):
        spec = importlib.util.find_spec("horovod.common")
        assert spec.origin == importlib.util.find_spec("hvdlite.horovod.common").origin
        assert spec.submodule_search_locations == hvdlite.horovod.common.__path__
        importlib.import_module("horovod.common")


def test_pickles_by_either_name(shim):
    from hvdlite.horovod.common.exceptions import HorovodVersionMismatchError
    from hvdlite.process_sets import ProcessSet

    def by_name(module, name):
        return pickle.loads(f"c{module}\n{name}\n.".encode())  # the opcode GLOBAL

    assert by_name("horovod.common.process_sets", "ProcessSet") is ProcessSet
    assert by_name("horovod.common.exceptions", "HorovodVersionMismatchError") is HorovodVersionMismatchError
    assert b"hvdlite.process_sets" in pickle.dumps(ProcessSet)


def test_nothing_is_imported_before_it_is_asked_for():
    done = run(
        """
        import sys
        import hvdlite.horovod.install
        import horovod, horovod.common.util
        assert not {"torch", "tensorflow", "keras", "numpy", "mpi4py", "hvdlite.torch", "hvdlite._engine"} & sys.modules.keys()
        from hvdlite.config import from_environment
        print(horovod.__version__, from_environment({}).horovod_rules)
        """
    )
    assert done.stderr == ""
    assert done.stdout == "0.28.1 True\n"


# --- what is not here -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("horovod.spark", "Spark; start the training script with mpirun"),
        ("horovod.ray", "Ray; start the training script with mpirun"),
        ("horovod.mxnet", "MXNet"),
        ("horovod.runner.launch", "use the command hvdlite run"),
        ("horovod.runner.common.util.secret", "use the command hvdlite run"),
        ("horovod._keras", "use horovod.keras"),
        ("horovod.toch", "docs/shim.md"),
    ],
)
def test_a_module_that_hvdlite_has_not_is_refused_by_name(shim, name, said):
    with pytest.raises(ModuleNotFoundError, match=f"hvdlite does not offer the module {name}: .*{said}") as caught:
        importlib.import_module(name)
    assert caught.value.name == name
    assert isinstance(caught.value, UnsupportedError)
    assert name not in sys.modules


def test_a_missing_module_is_refused_whichever_way_it_is_imported(shim):
    with pytest.raises(UnsupportedModuleError, match=r"horovod\.spark"):
        from horovod import spark  # noqa: F401
    with pytest.raises(UnsupportedModuleError, match=r"horovod\.spark:"):  # by the parent, with the parent's reason
        import horovod.spark.torch  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        from horovod.common.util import nonsense  # noqa: F401
    assert not hasattr(sys.modules["horovod"], "spark")


def test_a_misspelt_module_of_a_door(shim):
    pytest.importorskip("torch")
    with pytest.raises(UnsupportedModuleError, match=r"horovod\.torch\.optimiser: docs/shim\.md"):
        importlib.import_module("horovod.torch.optimiser")


def test_other_modules_are_none_of_its_business(shim):
    for name in ("horovodish", "json", "hvdlite.nonsense", "nonsense.horovod"):
        assert own_name(name) is None
    with pytest.raises(ModuleNotFoundError, match="No module named 'horovodish'"):
        importlib.import_module("horovodish")


def test_no_reason_is_given_for_the_absence_of_a_door_that_is_here():
    assert not [door for door in DOORS if door in REASONS and importlib.util.find_spec(f"hvdlite.{door}") is not None]


def test_a_door_without_its_framework_says_so():
    done = run(
        """
        import sys
        sys.modules["torch"] = None  # cannot be imported
        import hvdlite.horovod.install
        import horovod.torch
        """
    )
    assert "ImportError: hvdlite.torch needs PyTorch" in done.stderr


# --- a Horovod that is installed as well --------------------------------------------------------------------------------------


@pytest.fixture
def real(tmp_path):
    """A folder in which Horovod itself is installed."""
    package = tmp_path / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("run = 'the real one'")
    return tmp_path


def test_hvdlite_goes_before_an_installed_horovod_and_rank_0_says_so(real):
    program = """
        import hvdlite.horovod.install
        import horovod
        assert horovod is hvdlite.horovod
        """
    done = run(program, real)
    assert done.returncode == 0
    assert done.stderr == f"import horovod imports hvdlite here; the file {real / 'horovod' / '__init__.py'} is not used\n"
    assert run(program, real, env={"OMPI_COMM_WORLD_RANK": "1"}).stderr == ""


def test_a_folder_called_horovod_is_no_installation(tmp_path):
    (tmp_path / "horovod").mkdir()
    assert run("import hvdlite.horovod.install", tmp_path).stderr == ""


def test_after_horovod_itself_it_is_too_late(real):
    done = run("import horovod, hvdlite.horovod.install", real)
    assert done.returncode == 1
    assert f"ImportError: Horovod itself has been imported already, from {real / 'horovod' / '__init__.py'}" in done.stderr
    assert "import hvdlite.horovod.install before anything that imports horovod" in done.stderr


def test_installing_twice_is_installing_once():
    done = run(
        """
        import sys
        import hvdlite.horovod.install
        from hvdlite.horovod import install
        from hvdlite.horovod.finder import HorovodFinder
        print(sum(isinstance(finder, HorovodFinder) for finder in sys.meta_path))
        """
    )
    assert done.stdout == "1\n"


# --- the page -----------------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "shim.md").read_text()


def test_the_page_lists_the_modules():
    assert dict(re.findall(r"^\| `(horovod[\w.]*)` \| `(hvdlite[\w.]*)`", PAGE, re.MULTILINE)) == SERVED


def test_the_page_quotes_the_real_texts(shim):
    with pytest.raises(ImportError) as caught:
        importlib.import_module("horovod.spark")
    assert str(caught.value) in PAGE
    assert from_environment({"HOROVOD_ENABLE_XLA_OPS": "1"}).notes[0] in PAGE
