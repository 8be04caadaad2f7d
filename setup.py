"""Builds the native code through CMake. All settings that need no code are in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup

sys.path.insert(0, str(Path(__file__).resolve().parent / "_build"))

import mpi_choice
from cmake_build import CMakeBuild

setup(
    # The module makes setuptools mark the wheel as native. CMake knows the sources.
    ext_modules=[Extension("hvdlite._engine", sources=[])],
    cmdclass={"build_ext": CMakeBuild},
    # A build against an MPI wheel needs this wheel at run time. A build against the machine's MPI needs no wheel.
    install_requires=["numpy>=1.24", "mpi4py>=4", *mpi_choice.decide().requirements],
)
