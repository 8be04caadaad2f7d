"""One mutant: a small defect, as the exact replacement of some text of one file."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Mutant", "Stale"]


class Stale(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True)
class Mutant:
    """A defect, and who ought to notice it.

    Attributes:
        name: unique; what a person types after --only.
        what: the defect in one line.
        file: that it is in, relative to the root.
        old: text that is in the file exactly once.
        new: what stands there instead.
        tests: arguments for pytest; by the kind of fault, not by what was seen to notice it.
    """

    name: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def is_native(self) -> bool:
        """Must native code be built for it?"""
        return self.file.startswith(("csrc/", "tests/native/"))

    @property
    def key(self) -> str:
        """Of everything that a result depends on, so that a changed row is run again."""
        return hashlib.sha256(json.dumps([self.file, self.old, self.new, self.tests]).encode()).hexdigest()[:12]

    def applied(self, files: Mapping[str, bytes]) -> bytes:
        """The file's content with the defect.

        Raises:
            Stale: the text is not there, or there several times.
        """
        content = files.get(self.file)
        if content is None:
            raise Stale(f"{self.name}: there is no {self.file}")
        found = content.count(self.old.encode())
        if found != 1:
            raise Stale(f"{self.name}: its old text is in {self.file} {found} times, not once")
        return content.replace(self.old.encode(), self.new.encode())
