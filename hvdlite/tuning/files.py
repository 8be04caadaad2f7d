"""The file with the result of a tuning, and with the machine and the shape of the job to which the result applies.

The file is JSON: `format` (`FORMAT`), `key` (`JobPlace.key`), `settings` (knob name to value) and `evidence` (what was
measured; for people). A job uses the settings only if its whole key is the same.
"""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hvdlite import config
from hvdlite.errors import InvalidArgumentError
from hvdlite.knobs import KNOBS
from hvdlite.tuning.parameters import TUNABLE
from hvdlite.tuning.place import JobPlace
from hvdlite.tuning.search import Settings, Value

FORMAT = 1  # grows by one when the meaning of anything in the file changes

_BY_NAME = {knob.name: knob for knob in KNOBS}


def default_path(place: JobPlace) -> Path:
    """The path for ``HVDLITE_TUNING_FILE=auto``, which is also the default of `hvdlite tune`.

    Raises:
        InvalidArgumentError: the user has no cache folder.
    """
    folder = config.cache_folder()
    if not folder:
        raise InvalidArgumentError(
            "there is no cache folder for a tuning (neither XDG_CACHE_HOME nor HOME is set): name a file instead of auto"
        )
    text = json.dumps(place.key(), sort_keys=True)
    return Path(folder) / "hvdlite" / f"tuning-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def kept() -> list[dict[str, Any]]:
    """The keys of the files in the user's cache folder that can be read."""
    folder = config.cache_folder()
    found = []
    for path in sorted(Path(folder).glob("hvdlite/tuning-*.json")) if folder else ():
        try:
            found.append(load(path)[0])
        except InvalidArgumentError:  # perhaps from another version: a job that uses the file gets the error
            continue
    return found


def check_writable(path: Path) -> None:
    """Makes the folder of a file, and checks that `save` can write the file there.

    Raises:
        OSError: `save` cannot write it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    tempfile.TemporaryFile(dir=path.parent).close()


def save(path: Path, place: JobPlace, settings: Settings, evidence: Mapping[str, Any]) -> None:
    """Writes a file. A process that reads the file at the same time gets the whole old file or the whole new file.

    Raises:
        OSError: the file cannot be written.
    """
    check_writable(path)
    content = {"format": FORMAT, "key": place.key(), "settings": dict(settings), "evidence": dict(evidence)}
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        try:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def load(path: Path) -> tuple[dict[str, Any], dict[str, Value]]:
    """The key and the settings of a file.

    Raises:
        InvalidArgumentError: the file cannot be read, or does not have the form that `save` writes. The text names the file,
            what is wrong, and the remedy.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _broken(path, f"it cannot be read: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise _broken(path, "it is no tuning of hvdlite's")
    if content["format"] != FORMAT:
        raise _broken(path, f"it is of format {content['format']}, and this version of hvdlite reads format {FORMAT}")
    key, settings = content.get("key"), content.get("settings")
    if not isinstance(key, dict) or not isinstance(settings, dict):
        raise _broken(path, "it has no key or no settings")
    return key, {name: _checked(path, name, value) for name, value in settings.items()}


def _checked(path: Path, name: str, value: object) -> Value:
    """The value of a setting, parsed as the value of an environment variable is."""
    if name not in TUNABLE:
        raise _broken(path, f"{name!r} is nothing that is tuned; known: {', '.join(TUNABLE)}")
    knob = _BY_NAME[name]
    right = isinstance(value, str) if knob.kind == "choice" else isinstance(value, int | float)
    try:
        if isinstance(value, bool) or not right:
            raise ValueError
        parsed: Value = knob.parse(str(value))
    except ValueError:
        raise _broken(path, f"{name} is {knob.accepted}, not {value!r}") from None
    return parsed


def _broken(path: Path, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the tuning in {path} cannot be used: {why}; make it again with `hvdlite tune --output {path}`, or unset "
        "HVDLITE_TUNING_FILE"
    )


def differences(key: Mapping[str, Any], place: JobPlace) -> list[str]:
    """The differences between this job and the job of a file, in words; empty if the file's settings apply to this job."""
    here = place.key()
    names = [*here, *(name for name in key if name not in here)]
    return [
        f"{name} is {_said(here.get(name))} here and {_said(key.get(name))} there"
        for name in names
        if here.get(name) != key.get(name)
    ]


def _said(value: object) -> str:
    if isinstance(value, list) and len(value) > 1 and all(item == value[0] for item in value):
        return f"{len(value)} times {value[0]}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
