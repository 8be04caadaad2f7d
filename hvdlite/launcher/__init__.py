"""The command ``hvdlite``: starts jobs, checks an installation, writes shell completion.

No module here loads MPI, the native library or a framework. Checks of these run in separate processes.
"""
