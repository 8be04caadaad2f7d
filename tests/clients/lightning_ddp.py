"""Lightning 2: its DDP strategy on the backend "hvdlite" of torch.distributed, under mpirun."""

import lightning
import torch
from common import check_backend, digits, report
from lightning.pytorch.plugins.environments import MPIEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvdlite.torch.distributed  # noqa: F401, registers the backend


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


def main():
    train, test = ([torch.from_numpy(array) for array in part] for part in digits())
    strategy = DDPStrategy(process_group_backend="hvdlite", cluster_environment=MPIEnvironment())
    trainer = lightning.Trainer(
        max_epochs=8,
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Model()
    trainer.fit(model, DataLoader(TensorDataset(*train), 32, shuffle=True), DataLoader(TensorDataset(*test), 90))
    accuracy = trainer.callback_metrics["accuracy"].item()
    check_backend()
    report(f"lightning {lightning.__version__}", [p.detach().numpy() for p in model.parameters()], accuracy=accuracy)


if __name__ == "__main__":
    main()
