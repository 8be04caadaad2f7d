"""What both generations of Lightning train: their programs differ in the strategy."""

import torch
from common import digits, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(lightning, client, **options):
    """Trains and reports.

    Args:
        lightning: the package.
        client: its name.
        options: of its Trainer.
    """

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

        def training_step(self, batch, _):
            loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            return loss

        def validation_step(self, batch, _):
            right = (self.layers(batch[0]).argmax(1) == batch[1]).float().mean()
            self.log("accuracy", right, sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 2e-3)

    learn, test = (TensorDataset(*map(torch.from_numpy, part)) for part in digits())
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=8, accelerator="cpu", **quiet, **options)
    model = Model()
    trainer.fit(model, DataLoader(learn, 32, shuffle=True), DataLoader(test, 90))
    weights = [parameter.detach().numpy() for parameter in model.parameters()]
    report(f"{client} {lightning.__version__}", weights, accuracy=trainer.callback_metrics["accuracy"].item())
