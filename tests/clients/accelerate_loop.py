"""accelerate: a training loop of one's own, prepared by an Accelerator on the backend "hvdlite" of torch.distributed."""

import accelerate
import torch
from common import check_backend, digits, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hvdlite.torch.distributed  # noqa: F401, registers the backend


def main():
    # The group is there before accelerate asks for one, and it takes what there is.
    torch.distributed.init_process_group("hvdlite")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == 2, accelerator.state
    train, test = (TensorDataset(*map(torch.from_numpy, part)) for part in digits())
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    loader, evaluation = DataLoader(train, 16, shuffle=True), DataLoader(test, 90)
    model, optimizer, loader, evaluation = accelerator.prepare(
        model, torch.optim.Adam(model.parameters(), 4e-3), loader, evaluation
    )
    for _ in range(8):
        for images, labels in loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(images), labels))
                optimizer.step()
                optimizer.zero_grad()
    right = [accelerator.gather_for_metrics((model(images).argmax(1) == labels).float()) for images, labels in evaluation]
    check_backend()
    report(
        f"accelerate {accelerate.__version__}",
        [p.detach().numpy() for p in model.parameters()],
        accuracy=torch.cat(right).mean().item(),
    )


if __name__ == "__main__":
    main()
