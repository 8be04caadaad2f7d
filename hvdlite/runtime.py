"""The state of hvdlite in this process: the `Runtime`, which owns the engine between `init` and `shutdown`."""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hvdlite import config as knobs
from hvdlite import failures, startup
from hvdlite.config import Config
from hvdlite.errors import ErrorCode, HvdliteError, NotInitializedError, SystemFailure, from, hvdlite, install, requests
