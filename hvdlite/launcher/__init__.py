"""The command ``hvdlite``: starts jobs, checks an installation, writes shell completion.

No module here loads MPI, the native library or a framework: checks of those run in processes of their own.
"""
