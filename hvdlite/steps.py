"""The training steps of the program, which `hvdlite.usage` counts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Steps:
    """The training steps of the program since `init`: their number, and what happens at the end of each.

    Attributes:
        job: the number of the job among those that this process has joined; 0: it has joined none.
        watchers: functions to call at the end of each step, also in later jobs.
        count: the number of steps that have ended.
        by_program: does the program mark its steps itself (`mark_step`)? Then the steps of optimizers do not count.
        marks: the snapshots (`hvdlite.usage.Stats`) at the ends of the last two steps.
    """

    job: int = 0
    watchers: list[Callable[[], None]] = field(default_factory=list)
    count: int = 0
    by_program: bool = False
    marks: tuple[Any, Any] = (None, None)
