"""``horovod.torch.elastic``: states that a program commits, restores and synchronises; and `Job`. See docs/elastic.md."""

from hvdlite.elastic import run
from hvdlite.torch.elastic.job import ElasticJob as Job
from hvdlite.torch.elastic.sampler import ElasticSampler
from hvdlite.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "Job", "TorchState", "run"]
