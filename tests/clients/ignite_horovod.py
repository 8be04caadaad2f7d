"""pytorch-ignite: its distributed helpers on backend "horovod", under `python -m hvdlite.horovod`."""

import ignite
import ignite.distributed as idist
import torch
from common import digits, report
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import TensorDataset


def train(_rank):
    learn, test = (TensorDataset(*map(torch.from_numpy, part)) for part in digits())
    model = idist.auto_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), 2e-3))
    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss())
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()})

    @trainer.on(Events.COMPLETED)
    def evaluate():
        evaluator.run(idist.auto_dataloader(test, batch_size=90))

    trainer.run(idist.auto_dataloader(learn, batch_size=64, shuffle=True), max_epochs=8)
    report(
        f"pytorch-ignite {ignite.__version__}",
        [p.detach().numpy() for p in model.parameters()],
        accuracy=evaluator.state.metrics["accuracy"],
    )


if __name__ == "__main__":
    with idist.Parallel(backend="horovod") as parallel:
        parallel.run(train)
