"""What mpirun starts: sends this rank's output to files and becomes ``python <arguments>``.

Usage: python child.py FOLDER ARGUMENTS...
"""

import os
import sys

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def main() -> None:
    folder, arguments = sys.argv[1], sys.argv[2:]
    rank = next(os.environ[name] for name in RANK_VARIABLES if name in os.environ)
    for descriptor, stream in ((1, "stdout"), (2, "stderr")):
        file = os.open(f"{folder}/rank{rank}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main()
