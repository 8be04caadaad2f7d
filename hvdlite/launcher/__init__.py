"""The command ``hvdlite``: starts jobs, looks at an installation, writes shell completion.

Nothing here loads MPI, the native library or a framework: what has to look at those runs in a process of its own.
"""
