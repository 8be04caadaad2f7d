"""Checks that frameworks are installed without an import, which takes seconds and which only the jobs of a test file need."""

import importlib.util

import pytest


def need(*modules: str) -> None:
    """Skips the file that calls this at its top if one of these modules is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed", allow_module_level=True)
