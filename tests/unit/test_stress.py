"""Threads as ranks under the thread sanitizer for minutes: `make tsan` is in every CI run for one."""

import os
import shutil
import subprocess

import pytest
from support.slices import ROOT

SECONDS = 240


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("make"), reason="make is missing: apt install make")
def test_the_stress_program_finds_nothing_for_minutes():
    command = ["make", "tsan", f"HVDLITE_STRESS_SECONDS={SECONDS}"]
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "LD_PRELOAD")}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, "\n".join(done.stdout.splitlines()[-60:])
