"""The deadline of a call that cannot be interrupted: it ends the process with an error text, or is cancelled."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from hvdlite._engine import Deadline

deadline = Deadline({seconds}, 2, 3, "the others do not come")
{then}
print("went on")
"""


@pytest.mark.parametrize(
    ("seconds", "then", "code", "output", "error"),
    [
        # pause() waits for ever, with the GIL, as a call of MPI in an exit handler may.
        (0.01, "ctypes.PyDLL(None).pause()", 1, "", "control rank 2/3] the others do not come\n"),
        (3600.0, "deadline.cancel()", 0, "went on\n", ""),
        (3600.0, "del deadline", 0, "went on\n", ""),
        (1e12, "import os; os.sched_yield(); deadline.cancel()", 0, "went on\n", ""),
    ],
    ids=["too late", "cancelled", "deleted", "never"],
)
def test_a_process_ends_if_the_call_does_not_return(seconds, then, code, output, error):
    program = PROGRAM.format(seconds=seconds, then=then)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (code, output), done
    assert done.stderr.endswith(error), done
    assert bool(done.stderr) == bool(error), done


def test_a_warning_does_not_end_the_process():
    program = """
import ctypes, os
from hvdlite._engine import Deadline

reader, writer = os.pipe()
os.dup2(writer, 2)
deadline = Deadline(0.01, 2, 3, "the others do not come", ends=False)
print(ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1000), 1000) > 0)  # with the GIL
deadline.cancel()
print("went on")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "True\nwent on\n"), done
