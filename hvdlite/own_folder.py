"""A folder that belongs to one process, and is removed when this process ends."""

import atexit
import os
import shutil
import tempfile

_folders: list[str] = []  # the folders that this process has made; a forked child forgets those of its parent
os.register_at_fork(after_in_child=_folders.clear)


def folder_until_exit(prefix: str, place: str | None = None) -> str:
    """Makes a folder that only this user may read, and returns its path. It stays behind if this process is killed.

    This process removes the folder after the functions that are registered with `atexit` later.

    Args:
        prefix: the beginning of the folder's name.
        place: the parent folder; by default the system's folder for temporary files.

    Raises:
        OSError: the folder cannot be made.
    """
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    _folders.append(folder)
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    # A process that native code has forked still has the folder in its list.
    if os.getpid() == owner and folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)
