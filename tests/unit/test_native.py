"""Choosing the shim for the loaded MPI, and what is said when none fits."""

import doctest
import importlib.util
import mmap
import os
import shutil
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from hvdlite import _native
from hvdlite._native import LoadedMpi
from hvdlite.errors import SystemFailure

OPEN_MPI = LoadedMpi("openmpi", "Open MPI v5.0.11", "/env/mpi4py/MPI.openmpi.so", ("/env/lib/libmpi.so.40",))
MPICH = LoadedMpi("mpich", "MPICH 5.0.2", "/env/mpi4py/MPI.mpich.so", ("/env/lib/libmpi.so.12",))


@pytest.mark.parametrize(
    ("module", "description", "family"),
    [
        ("/x/mpi4py/MPI.openmpi.cpython-311-x86_64-linux-gnu.so", "", "openmpi"),
        ("/x/mpi4py/MPI.mpich.cpython-311-x86_64-linux-gnu.so", "", "mpich"),
        ("/x/mpi4py/MPI.mpiabi.cpython-314-x86_64-linux-gnu.so", "MPICH Version: 5.0.2", "mpiabi"),
        ("/x/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so", "Open MPI v4.1.4, package: Debian OpenMPI", "openmpi"),
        ("/x/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so", "MPICH Version:      4.0.2\nMPICH Release date:", "mpich"),
        ("/x/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so", "Intel(R) MPI Library 2021.9 for Linux* OS", "mpich"),
        ("/x/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so", "MPI VERSION    : CRAY MPICH version 8.1.25", "mpich"),
        ("/x/mpi4py/MPI.cpython-311-x86_64-linux-gnu.so", "NEC MPI 3.0", "unknown"),
    ],
)
def test_family_of(module, description, family):
    assert _native.family_of(module, description) == family


def test_short_version():
    assert _native.short_version("MPICH Version:      5.0.2\nMPICH Release date: x") == "MPICH 5.0.2"
    assert _native.short_version("") == "an MPI without a name"


def test_a_process_may_map_a_file_of_any_name(tmp_path):
    path = os.fsencode(tmp_path) + b"/M\xfcller"
    with open(path, "wb+") as file:
        file.write(b"1")
        file.flush()
        with mmap.mmap(file.fileno(), 1):
            assert f"{os.fsdecode(path)}\n" in _native.mapped_files()


def test_loaded_libraries():
    maps = (
        "7f00 r--p 00000000 08:01 1  /env/lib/libmpi.so.40\n"
        "7f01 r-xp 00001000 08:01 1  /env/lib/libmpi.so.40\n"
        "7f02 r--p 00000000 08:01 2  /env/lib/libmpi_extra.so.1\n"
        "7f03 r--p 00000000 08:01 3  /usr/lib/libmpich.so.12\n"
        "7f04 r--p 00000000 08:01 4  /home/a user/my env/lib/libmpi.so.12\n"
    )
    found = ("/env/lib/libmpi.so.40", "/usr/lib/libmpich.so.12", "/home/a user/my env/lib/libmpi.so.12")
    assert _native.loaded_libraries(maps) == found


def test_a_mapped_file_may_have_a_name_that_is_no_text(tmp_path):
    """For instance in the folder of a user whose files have names in Latin-1."""
    path = tmp_path / os.fsdecode(b"\xff")
    path.write_bytes(b"x")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 1):
        assert _native.loaded_mpi().libraries


def test_built_shims(tmp_path):
    for name in ("hvdlite_mpi_openmpi.so", "hvdlite_mpi_mpich.so", "libhvdlite_core.so"):
        (tmp_path / name).touch()
    assert _native.built_shims(tmp_path) == {
        "mpich": str(tmp_path / "hvdlite_mpi_mpich.so"),
        "openmpi": str(tmp_path / "hvdlite_mpi_openmpi.so"),
    }


def test_the_fitting_shim_is_chosen():
    shims = {"mpich": "/p/m.so", "openmpi": "/p/o.so"}
    assert _native.choose_shim(OPEN_MPI, shims) == "/p/o.so"
    assert _native.choose_shim(MPICH, shims) == "/p/m.so"


def test_mismatch_names_both_mpis_and_both_ways_out():
    with pytest.raises(SystemFailure) as caught:
        _native.choose_shim(MPICH, {"openmpi": "/p/o.so"})
    assert str(caught.value) == (
        "hvdlite was built for Open MPI, but mpi4py has loaded MPICH 5.0.2 (mpi4py's module /env/mpi4py/MPI.mpich.so, library "
        "/env/lib/libmpi.so.12). Either let mpi4py load the MPI that hvdlite was built for, by MPI4PY_MPIABI=openmpi with "
        "MPI4PY_LIBMPI=/path/to/libmpi.so.40, and start the job with that MPI's mpirun; or build hvdlite for the loaded MPI: "
        "HVDLITE_MPI=mpich pip install --force-reinstall --no-deps --no-cache-dir hvdlite (HVDLITE_MPI can also be the path "
        "of that MPI's mpicxx)."
    )


def test_unknown_mpi_is_refused():
    loaded = LoadedMpi("unknown", "NEC MPI 3.0", "/env/mpi4py/MPI.so")
    with pytest.raises(
        SystemFailure, match=r"built for MPICH and Open MPI, but mpi4py has loaded NEC MPI 3\.0 \(mpi4py's module"
    ):
        _native.choose_shim(loaded, {"mpich": "m", "openmpi": "o"})


def test_no_shim_at_all():
    with pytest.raises(SystemFailure, match="no shim for any MPI; mpi4py has loaded Open MPI v5"):
        _native.choose_shim(OPEN_MPI, {})


def import_without_native_module(source_tree, search_path, monkeypatch):
    """The error when hvdlite is imported from a source tree that was not built."""
    package = source_tree / "hvdlite"
    package.mkdir(parents=True)
    shutil.copy(Path(_native.__file__).with_name("_engine.py"), package)
    monkeypatch.setattr(sys, "path", list(map(str, search_path)))
    spec = importlib.util.spec_from_file_location("unbuilt_engine", package / "_engine.py")
    with pytest.raises(ImportError) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return str(caught.value)


def test_a_source_tree_that_hides_the_installed_hvdlite_is_named(tmp_path, monkeypatch):
    tree, installed = tmp_path / "clone", tmp_path / "site-packages"
    (installed / "hvdlite").mkdir(parents=True)
    (installed / "hvdlite" / f"_engine{EXTENSION_SUFFIXES[0]}").touch()
    text = import_without_native_module(tree, [tree, installed], monkeypatch)
    assert f"{tree / 'hvdlite'} has no native module for Python 3." in text
    assert f"{installed / 'hvdlite'} has one" in text
    assert text.endswith(f"in other folders than {tree}")


def test_without_any_native_module_the_remedy_is_to_install(tmp_path, monkeypatch):
    tree = tmp_path / "clone"
    text = import_without_native_module(tree, [tree, tmp_path / "nothing"], monkeypatch)
    assert text.endswith("install hvdlite with pip, or run `make develop` in a source tree")


def test_one_version_everywhere():
    from hvdlite import _engine, _version

    assert _engine.__version__ == _version.__version__


def test_examples_in_docstrings():
    assert doctest.testmod(_native).failed == 0
