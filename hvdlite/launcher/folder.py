"""Private temporary folders. A folder is deleted at the end of its with statement. If the process that made the folder is
killed before that, a later process that makes a folder of the same kind deletes the folder.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_OWNER = "owner"  # a file that is locked while the folder is in use; the lock of a killed process is released


@contextlib.contextmanager
def private_folder(kind: str, place: str | None = None) -> Iterator[str]:
    """Makes a folder that only this user may read, and yields its path.

    Args:
        kind: the purpose of the folder; a part of its name.
        place: the parent folder; by default the system's folder for temporary files. There, this function first deletes the
            folders of the same kind whose processes were killed.
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
        # A folder in use stays, because its owner file is locked. A folder without an owner file stays, too: it is being made
        # now, or lies on a file system without locks.
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.geteuid():
                continue
            with (folder / _OWNER).open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
