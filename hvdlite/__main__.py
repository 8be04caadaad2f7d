"""``python -m hvdlite`` is the command ``hvdlite``."""

import sys

from hvdlite.launcher.cli import main

if __name__ == "__main__":
    sys.exit(main())
