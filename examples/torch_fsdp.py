"""Trains a small transformer on Python's help texts; the ranks share its parameters (torch's FSDP2).

    mpirun -n 2 python torch_fsdp.py

You should see how many of the parameters are on rank 0, and a loss that falls from about 2.4 after 50 steps to about
1.4 after 300 steps.

Here hvdlite is the backend of torch.distributed. torch's `fully_shard` gathers the parameters of a layer before they are used,
and reduces its gradients, with hvdlite's collectives. With --compare, rank 0 also trains the same model alone on the whole
batch, and each line has both losses. They differ only by rounding.
"""

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import hvdlite.torch.distributed


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--steps", type=int, default=300, help="steps of training")
    parser.add_argument("--batch-size", type=int, default=16, help="passages in a batch of each rank")
    parser.add_argument("--length", type=int, default=64, help="letters in a passage")
    parser.add_argument("--width", type=int, default=128, help="size of the vectors in the model")
    parser.add_argument("--layers", type=int, default=4, help="transformer layers of the model")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate")
    parser.add_argument("--report-every", type=int, default=50, help="steps between reports")
    parser.add_argument("--compare", action="store_true", help="also train on the whole batch on rank 0 alone")
    return parser.parse_args(argv)


def passages(text, step, options, ranks):
    """The whole batch of one step, the same on all ranks: letters, and for each letter the one that follows."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - options.length - 1, (options.batch_size * ranks,), generator=generator)
    found = torch.stack([text[start : start + options.length + 1] for start in starts])
    return found[:, :-1], found[:, 1:]


class Transformer(nn.Module):
    """A decoder: it predicts each letter from the letters before it."""

    def __init__(self, options):
        super().__init__()
        torch.manual_seed(0)
        self.letters = nn.Embedding(len(common.LETTERS), options.width)
        self.places = nn.Embedding(options.length, options.width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(options.width, 4, 4 * options.width, 0.0, batch_first=True, norm_first=True)
            for _ in range(options.layers)
        )
        self.guess = nn.Linear(options.width, len(common.LETTERS))

    def forward(self, letters):
        """Letters of shape [batch, length] to scores for the next letter, of shape [batch * length, letters]."""
        mask = nn.Transformer.generate_square_subsequent_mask(letters.shape[1])
        x = self.letters(letters) + self.places.weight[: letters.shape[1]]
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.guess(x.flatten(0, 1))


def step_of(model, optimizer, letters, following):
    """Makes one step of training. Returns its loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(letters), following.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def main(argv=None):
    """Trains. Returns the last loss, averaged over the ranks, and with --compare that of one process (otherwise None)."""
    options = parse_arguments(argv)
    dist.init_process_group(hvdlite.torch.distributed.BACKEND)  # under mpirun it needs no address and no environment variables
    rank, ranks = dist.get_rank(), dist.get_world_size()
    text = torch.tensor(common.help_texts())
    model = Transformer(options)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    twin = Transformer(options) if options.compare and rank == 0 else None
    twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=options.lr) if twin else None
    if rank == 0:
        held = sum(param.to_local().numel() for param in model.parameters())
        every = sum(param.numel() for param in model.parameters())
        print(f"{len(text):,} letters; {held:,} of {every:,} parameters are on rank 0")

    loss = alone = None
    for step in range(1, options.steps + 1):
        letters, following = passages(text, step, options, ranks)
        mine = slice(rank * options.batch_size, (rank + 1) * options.batch_size)
        loss = step_of(model, optimizer, letters[mine], following[mine])
        if twin:
            alone = step_of(twin, twin_optimizer, letters, following)
        if step % options.report_every == 0 or step == options.steps:
            dist.all_reduce(loss, op=dist.ReduceOp.AVG)
            if rank == 0:
                compared = f", of one process {alone:.4f}" if twin else ""
                print(f"step {step}: loss {loss:.4f} on {ranks} rank(s){compared}", flush=True)
    dist.destroy_process_group()
    return float(loss), None if alone is None else float(alone)


if __name__ == "__main__":
    main()
