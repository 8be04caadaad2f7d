"""Training state that a program commits, restores and synchronises: ``horovod.common.elastic``, for any framework.

docs/elastic.md says what works. `hvdlite.torch.elastic` has the state of models, optimizers and samplers.
"""

from hvdlite.elastic.run import LossIn, run, run_fn
from hvdlite.elastic.state import HostUpdateResult, ObjectState, State
from hvdlite.errors import HorovodInternalError, HostsUpdatedInterrupt

__all__ = [
    "HorovodInternalError",
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "LossIn",
    "ObjectState",
    "State",
    "run",
    "run_fn",
]
