"""Finds the knobs that suit a machine: the search, the parameters that it may change, and the file with the result.

This package neither measures nor uses MPI: `hvdlite.autotune` measures, and uses the file.
"""
