"""The command ``hvdlite``: starts jobs, checks an installation, writes shell completion.

No module of this package loads MPI, the native module or a framework. What checks MPI, the native module or a
framework runs in a process of its own.
"""
