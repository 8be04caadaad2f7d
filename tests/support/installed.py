"""Frameworks that only the jobs of a test file import: importing them in pytest as well takes seconds."""

import importlib.util

import pytest


def need(*modules: str) -> None:
    """Skips the file that calls this at its top where one of these is not installed."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed", allow_module_level=True)
