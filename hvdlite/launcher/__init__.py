"""The command ``hvdlite``: starts jobs, checks an installation, writes shell completion.

No module of this package loads MPI, the native module or a framework. Checks of these run in processes of their own.
"""
