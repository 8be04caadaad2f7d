"""``horovod.runner.common.util.env``: what the environment says of this process."""

from hvdlite.config import rank_and_size_by_launcher as get_env_rank_and_size

__all__ = ["get_env_rank_and_size"]
