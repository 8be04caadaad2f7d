"""Builds the native part through CMake; what can be said declaratively is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "_build"))

import mpi_choice
from cmake_build import CMakeBuild

setup(
    # Names the module so that the wheel is marked as native; CMake knows the sources.
    ext_modules=[Extension("hvdlite._engine", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    # Whoever builds against an MPI wheel needs that wheel at run time; whoever brings an MPI does not.
    install_requires=["numpy>=1.24", "mpi4py>=4", *mpi_choice.decide().requirements],
)
