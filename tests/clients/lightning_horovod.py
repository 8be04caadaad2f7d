"""Lightning 1.9, the last with a strategy for Horovod: `strategy="horovod"`, unchanged, under `python -m hvdlite.horovod`."""

import pytorch_lightning
from lightning_digits import train

if __name__ == "__main__":
    train(pytorch_lightning, "pytorch-lightning", devices=1, strategy="horovod")
