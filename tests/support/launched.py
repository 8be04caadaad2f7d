"""The command lines and the environment for tests of ``hvdlite run`` and ``hvdlite.run``."""

import subprocess
import sys

from support.job import job_environment

TIMEOUT = 180.0
# The launcher itself sets these variables for root and for more ranks than cores.
OURS = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_MCA_rmaps_default_mapping_policy", "OMPI_MCA_rmaps_base_oversubscribe")


def environment(**changes):
    kept = {name: value for name, value in job_environment().items() if not name.startswith(OURS)}
    return {**kept, **changes}


def command(*words):
    return [sys.executable, "-m", "hvdlite", "run", *words]


def in_a_program(tmp_path, text, **changes):
    script = tmp_path / "caller.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, str(script)], env=environment(**changes), capture_output=True, text=True, timeout=TIMEOUT
    )
