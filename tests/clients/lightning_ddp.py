"""Lightning 2: its DDP strategy on the backend "hvdlite" of torch.distributed, under mpirun."""

import lightning
from common import check_backend
from lightning.pytorch.plugins.environments import MPIEnvironment
from lightning.pytorch.strategies import DDPStrategy
from lightning_digits import train

import hvdlite.torch.distributed  # noqa: F401, registers the backend

if __name__ == "__main__":
    strategy = DDPStrategy(process_group_backend="hvdlite", cluster_environment=MPIEnvironment())
    train(lightning, "lightning", devices=2, strategy=strategy)
    check_backend()
