"""The package ``horovod``, as hvdlite serves it to programs that import Horovod.

    python -m hvdlite.horovod train.py --epochs 3       runs a Horovod script as it is
    python -m hvdlite.horovod -m package.train          the same for a module
    import hvdlite.horovod.install                      first line of a program: from here on horovod means hvdlite

``horovod`` is this package then, ``horovod.torch`` is `hvdlite.torch`, and so on, each the same module object under both
names (`hvdlite.horovod.finder` has the rule, docs/shim.md the list). Nothing is imported before a script asks for it.
"""

from hvdlite.horovod.runner import run

__all__ = ["__version__", "run"]

# Programs compare it to learn what they may call, and take it apart at its dots: three numbers, those of the Horovod whose
# interface this is. hvdlite's own version is hvdlite.__version__.
__version__ = "0.28.1"
