"""An example for each name of metrics.md. The reference shows it below the name; the tests run it on two ranks."""

import numpy as np

import hvdlite as hvd
import hvdlite.metrics

hvd.init()


def TensorBoardWriter():
    class Log:  # or torch.utils.tensorboard.SummaryWriter("runs")
        def __init__(self):
            self.tags = set()

        def add_scalar(self, tag, value, step):
            self.tags.add(tag)

    log = Log()
    writer = hvdlite.metrics.TensorBoardWriter(log, every=1)
    for _ in range(3):
        hvd.allreduce(np.ones(10), name="gradient")
        hvd.mark_step()
    writer.close()
    assert all(tag.startswith("hvdlite/") for tag in log.tags)


def PrometheusWriter():
    from pathlib import Path

    writer = hvdlite.metrics.PrometheusWriter("hvdlite-{rank}.prom", interval=60.0)  # seconds
    hvd.allreduce(np.ones(10))
    writer.write()  # now; the writer's thread does it once a minute
    writer.close()
    assert "hvdlite_operations" in Path(f"hvdlite-{hvd.rank()}.prom").read_text()


def to_prometheus():
    text = hvdlite.metrics.to_prometheus(hvd.stats(), host="node1")
    assert f'{{rank="{hvd.rank()}",host="node1"}}' in text
