"""Private temporary folders. A folder is deleted at the end of its block, or, if its process is killed, when another process
makes a folder of the same kind.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["private_folder"]

_OWNER = "owner"  # a file that is locked while the folder is in use; the lock of a killed process is released


@contextlib.contextmanager
def private_folder(kind: str, place: str | None = None) -> Iterator[str]:
    """Makes a folder that only this user may read, and yields its path.

    Args:
        kind: the purpose of the folder; a part of its name.
        place: the parent folder. By default it is the system's folder for temporary files, and folders of the same kind that
            killed processes have left there are deleted.
    """
    prefix = f"hvdlite-{kind}-"
    if place is None:
        _sweep(Path(tempfile.gettempdir()), prefix)
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    try:
        with open(os.path.join(folder, "unlocked"), "w") as owner:
            with contextlib.suppress(OSError):  # some file systems support no locks
                fcntl.flock(owner, fcntl.LOCK_EX)
                os.rename(owner.name, os.path.join(folder, _OWNER))  # only a locked file may have this name
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(place: Path, prefix: str) -> None:
    for folder in place.glob(f"{prefix}*"):
        # A folder without the owner file is being made now, or lies on a file system without locks.
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.geteuid():
                continue
            with (folder / _OWNER).open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
