"""``horovod.runner.common.util.env``: reads this process's rank and size from the launcher's variables."""

from hvdlite.config import rank_and_size_by_launcher as get_env_rank_and_size

__all__ = ["get_env_rank_and_size"]
