"""The build backend: setuptools, and an MPI wheel among the build requirements if the machine has no MPI.

If the requirement were fixed, the wheel would hide the MPI of a machine that has one.
"""

import mpi_choice
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (the hooks that this file does not replace)


def get_requires_for_build_wheel(config_settings=None):
    return [
        *build_meta.get_requires_for_build_wheel(config_settings),
        *mpi_choice.decide().requirements,
    ]


def get_requires_for_build_editable(config_settings=None):
    return [
        *build_meta.get_requires_for_build_editable(config_settings),
        *mpi_choice.decide().requirements,
    ]
