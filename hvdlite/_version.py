"""The version, in one place: packaging, CMake and ``hvdlite.__version__`` read it here."""

__version__ = "0.2.0"
