"""Private temporary folders: deleted at the end of the block, or, if the process is killed, when the next one is made."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["private_folder"]

_OWNER = "owner"  # a file that is locked while the folder is in use; a killed process holds no lock


@contextlib.contextmanager
def private_folder(kind: str, place: str | None = None) -> Iterator[str]:
    """A folder that only this user may read.

    Args:
        kind: its purpose, for its name.
        place: its parent folder; by default the system's for temporary files, where abandoned folders are removed as well.
    """
    prefix = f"hvdlite-{kind}-"
    if place is None:
        _sweep(Path(tempfile.gettempdir()), prefix)
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    owner = open(os.path.join(folder, "unlocked"), "w")  # noqa: SIM115 - for as long as the block lasts
    try:
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(owner, fcntl.LOCK_EX)
            os.rename(owner.name, os.path.join(folder, _OWNER))  # now that it is locked
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        owner.close()


def _sweep(place: Path, prefix: str) -> None:
    for folder in place.glob(f"{prefix}*"):
        # A folder without the file is being made at this moment, or its owner is unknown.
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.geteuid():
                continue
            with (folder / _OWNER).open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
