"""Digits with PyTorch and elastic Horovod, in the form of Horovod's elastic MNIST example. Rank 1 dies in epoch 2."""

import argparse
import os
import signal

import horovod.torch as hvd
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import torch.utils.data.distributed
from sklearn.datasets import load_digits

parser = argparse.ArgumentParser(description="Elastic PyTorch Digits Example")
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--fp16-allreduce", action="store_true", default=False)
args = parser.parse_args()

hvd.init()
FIRST = hvd.rank()
torch.manual_seed(42)
torch.set_num_threads(1)

digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
train_dataset = torch.utils.data.TensorDataset(images[:1500], labels[:1500])
train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset, num_replicas=hvd.size(), rank=hvd.rank())
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=args.batch_size, sampler=train_sampler)

model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Dropout(0.1), nn.Linear(50, 10))
optimizer = optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none


@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, args.epochs + 1):  # noqa: B020 - as in that example
        state.model.train()
        train_sampler.set_epoch(state.epoch)
        steps_remaining = len(train_loader) - state.batch
        for state.batch, (data, target) in enumerate(train_loader):
            if state.batch >= steps_remaining:
                break
            if (FIRST, state.epoch, state.batch) == (1, 2, 10):
                os.kill(os.getpid(), signal.SIGKILL)
            state.optimizer.zero_grad()
            loss = F.cross_entropy(state.model(data), target)
            loss.backward()
            state.optimizer.step()
            state.commit()
        print("Train Epoch: {} on {} ranks\tLoss: {:.6f}".format(state.epoch, hvd.size(), loss.item()), flush=True)
        state.batch = 0


def test():
    model.eval()
    correct = model(images[1500:]).argmax(1).eq(labels[1500:]).float().mean()
    accuracy = hvd.allreduce(correct, name="avg_accuracy").item()
    if hvd.rank() == 0:
        print("Accuracy: {:.2f}%".format(100.0 * accuracy), flush=True)


optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), compression=compression, op=hvd.Average
)


def on_state_reset():
    for param_group in optimizer.param_groups:
        param_group["lr"] = args.lr * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, epoch=1, batch=0)
state.register_reset_callbacks([on_state_reset])
train(state)
test()
