"""transformers: its Trainer on the backend "hvdlite" of torch.distributed. A small GPT-2 learns the letters of Python's
licence."""

import builtins
import tempfile

import torch
import transformers
from common import check_backend, report
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import hvdlite.torch.distributed  # noqa: F401, registers the backend

LENGTH = 64


class Letters(Dataset):
    def __init__(self):
        builtins.license._Printer__setup()
        text = "\n".join(builtins.license._Printer__lines).encode("ascii", "replace")
        self.letters = torch.tensor(list(text))

    def __len__(self):
        return len(self.letters) // LENGTH

    def __getitem__(self, at):
        letters = self.letters[at * LENGTH : (at + 1) * LENGTH]
        return {"input_ids": letters, "labels": letters}


def main():
    torch.distributed.init_process_group("hvdlite")
    transformers.set_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=128, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            num_train_epochs=4,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=Letters())
        trainer.train()
        assert trainer.args.world_size == 2
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    check_backend()
    report(
        f"transformers {transformers.__version__}",
        [p.detach().numpy() for p in model.parameters()],
        losses=(losses[0], losses[-1]),
    )


if __name__ == "__main__":
    main()
