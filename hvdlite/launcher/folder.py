"""Private folders for a time: gone with the block, and if the process is killed, with the next one that is made."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["private_folder"]

_OWNER = "owner"  # a file that is locked for as long as the folder is in use; a process that is killed holds no lock


@contextlib.contextmanager
def private_folder(kind: str, place: str | None = None) -> Iterator[str]:
    """A folder that only this user may read.

    Args:
        kind: what for, in its name.
        place: where; the system's place for temporary files without it, where those that others have left are removed, too.
    """
    prefix = f"hvdlite-{kind}-"
    if place is None:
        _sweep(Path(tempfile.gettempdir()), prefix)
    folder = tempfile.mkdtemp(prefix=prefix, dir=place)
    owner = open(os.path.join(folder, "unlocked"), "w")  # noqa: SIM115 - for as long as the block lasts
    try:
        with contextlib.suppress(OSError):  # not all file systems have locks
            fcntl.flock(owner, fcntl.LOCK_EX)
            os.rename(owner.name, os.path.join(folder, _OWNER))  # now that it is locked
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        owner.close()


def _sweep(place: Path, prefix: str) -> None:
    for folder in place.glob(f"{prefix}*"):
        # One without the file is just being made, or belongs to nobody whom we could ask.
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.geteuid():
                continue
            with (folder / _OWNER).open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
