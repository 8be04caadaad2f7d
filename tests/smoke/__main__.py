"""Does the hvdlite of this Python work with its frameworks? python tests/smoke PROGRAM...

Runs small programs on two ranks, by the mpirun beside this Python or else the one on PATH. Needs nothing but the standard
library in this process, and in the ranks hvdlite and the frameworks that the programs name.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.job import run_job

HERE = Path(__file__).parent
SECONDS = 240.0  # a minute at most on a machine that has nothing else to do

PROGRAMS = {
    "numpy": ("with_numpy.py",),
    "torch": ("with_torch.py",),
    "tensorflow": ("with_tensorflow.py",),
    "keras-tensorflow": ("with_keras.py", "tensorflow"),
    "tf_keras": ("with_keras.py", "tf_keras"),
    "keras-torch": ("with_keras.py", "torch"),
    "jax": ("with_jax.py",),
    "keras-jax": ("with_keras.py", "jax"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/smoke", description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="+", choices=PROGRAMS, metavar="PROGRAM", help=", ".join(PROGRAMS))
    failed = 0
    for name in parser.parse_args().programs:
        script, *arguments = PROGRAMS[name]
        job = run_job(HERE / script, 2, SECONDS, arguments, {"TF_CPP_MIN_LOG_LEVEL": "2"})
        ok = job.returncode == 0 and not job.timed_out
        failed += not ok
        print(f"{name}: {'passed' if ok else 'FAILED'} in {job.seconds:.0f} s", flush=True)
        if not ok:
            print(job.report(), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
