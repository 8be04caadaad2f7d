"""Lightning 1.9, the last with a strategy for Horovod: `strategy="horovod"`, unchanged, under `python -m hvdlite.horovod`."""

import pytorch_lightning
import torch
from common import digits, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Model(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch, _):
        right = (self.layers(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 2e-3)


def main():
    train, test = ([torch.from_numpy(array) for array in part] for part in digits())
    trainer = pytorch_lightning.Trainer(
        max_epochs=8,
        accelerator="cpu",
        devices=1,
        strategy="horovod",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(*train), 32, shuffle=True), DataLoader(TensorDataset(*test), 90))
    accuracy = trainer.callback_metrics["accuracy"].item()
    report(
        f"pytorch-lightning {pytorch_lightning.__version__}",
        [p.detach().numpy() for p in model.parameters()],
        accuracy=accuracy,
    )


if __name__ == "__main__":
    main()
