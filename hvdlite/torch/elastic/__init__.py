"""``horovod.torch.elastic``: the state of a training, which it commits, restores and synchronises. See docs/elastic.md."""

from hvdlite.elastic import run
from hvdlite.torch.elastic.job import ElasticJob as Job
from hvdlite.torch.elastic.sampler import ElasticSampler
from hvdlite.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "Job", "TorchState", "run"]
