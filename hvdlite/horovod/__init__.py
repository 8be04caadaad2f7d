"""The package ``horovod`` for programs that import Horovod: its modules are those of hvdlite.

    python -m hvdlite.horovod train.py --epochs 3       runs a Horovod script without changes
    python -m hvdlite.horovod -m package.train          the same for a module
    import hvdlite.horovod.install                      first line of a program: after it ``import horovod`` imports hvdlite

In these programs ``horovod`` is this package, ``horovod.torch`` is `hvdlite.torch`, and so on. Each module is one object with
two names (`hvdlite.horovod.finder` has the rule, docs/shim.md lists the modules). A module is imported only when the program
imports it.
"""

from hvdlite.horovod.runner import run

__all__ = ["__version__", "run"]

# The version of Horovod whose interface this package has. Programs compare this version to learn which functions exist, and
# some programs split it at its dots into three numbers. The version of hvdlite is hvdlite.__version__.
__version__ = "0.28.1"
