"""Traces: what the engine writes, and what is made of it."""

from mutants import guards
from mutants.mutant import Mutant

ROWS = (
    Mutant(
        "timeline-unescaped",
        "a tensor's name with quotes breaks the file",
        "csrc/engine/observe/timeline_writer.cc",
        "if (c == '\"' || c == '\\\\') {",
        "if (c == '\\\\') {",
        guards.TIMELINE,
    ),
    Mutant(
        "timeline-old-half",
        "the older half of a trace is not read",
        "hvdlite/timeline/files.py",
        "if part is path or part.exists():",
        "if part is path:",
        ("tests/unit/test_timeline_files.py", "tests/unit/test_timeline_report.py"),
    ),
    Mutant(
        "timeline-clocks",
        "another host's clock is taken from the wall clocks alone",
        "hvdlite/timeline/files.py",
        'shifts.append((least + most) / 2 if least > float("-inf") else guess)',
        "shifts.append(guess)",
        ("tests/unit/test_timeline_report.py",),
    ),
)
