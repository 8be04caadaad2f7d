"""Trains a small transformer on Python's help texts; the ranks share its layers (torch's pipelining).

    mpirun -n 2 python torch_pipeline.py --schedule 1F1B

You should see the number of layers on the last rank, and a loss that falls from about 2.4 after 50 steps to about 1.5 after
300 steps.

Here hvdlite is the backend of torch.distributed. Each rank has some of the layers. For each microbatch torch's schedules send
activations to the next rank and gradients to the previous rank, by hvdlite's point-to-point messages. With --compare, the last
rank also trains the whole model alone, and each line has both losses. They differ only by rounding.
"""

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import hvdlite.torch.distributed

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B", help="the order of the microbatches")
    parser.add_argument("--microbatches", type=int, default=8, help="number of microbatches in a batch")
    parser.add_argument("--steps", type=int, default=300, help="steps of training")
    parser.add_argument("--batch-size", type=int, default=32, help="passages in a batch; a multiple of --microbatches")
    parser.add_argument("--length", type=int, default=64, help="letters in a passage")
    parser.add_argument("--width", type=int, default=128, help="size of the vectors in the model")
    parser.add_argument("--layers", type=int, default=4, help="transformer layers of the model")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate")
    parser.add_argument("--report-every", type=int, default=50, help="steps between reports")
    parser.add_argument("--compare", action="store_true", help="also train the whole model on the last rank alone")
    return parser.parse_args(argv)


def passages(text, step, options):
    """The batch of one step, the same on all ranks: letters, and for each letter the one that follows."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - options.length - 1, (options.batch_size,), generator=generator)
    found = torch.stack([text[start : start + options.length + 1] for start in starts])
    return found[:, :-1], found[:, 1:]


class Letters(nn.Module):
    """Converts letters and their positions to vectors."""

    def __init__(self, options):
        super().__init__()
        self.letters = nn.Embedding(len(common.LETTERS), options.width)
        self.places = nn.Embedding(options.length, options.width)

    def forward(self, letters):
        """Letters of shape [batch, length] to vectors of shape [batch, length, width]."""
        return self.letters(letters) + self.places.weight[: letters.shape[1]]


class Layer(nn.TransformerEncoderLayer):
    """A layer of a decoder: each position depends only on itself and the positions before it."""

    def forward(self, x):
        """Vectors of shape [batch, length, width] to vectors of the same shape."""
        return super().forward(x, src_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)


def make_layers(options):
    """All layers, from letters to scores for the next letter. They are the same on all ranks."""
    torch.manual_seed(0)
    width = options.width
    layers = [Layer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(options.layers)]
    return [Letters(options), *layers, nn.Linear(width, len(common.LETTERS))]


def loss_of(scores, following):
    """The cross entropy of the scores for the letters that follow."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def main(argv=None):
    """Trains. On the last rank it returns the last loss and, with --compare, that of one process. Other values are None."""
    options = parse_arguments(argv)
    dist.init_process_group(hvdlite.torch.distributed.BACKEND)  # under mpirun it needs no address and no environment variables
    rank, ranks = dist.get_rank(), dist.get_world_size()
    is_first, is_last = rank == 0, rank == ranks - 1
    text = torch.tensor(common.help_texts())
    layers = make_layers(options)
    mine = nn.Sequential(*layers[len(layers) * rank // ranks : len(layers) * (rank + 1) // ranks])
    pipeline = SCHEDULES[options.schedule](
        PipelineStage(mine, rank, ranks, torch.device("cpu")), options.microbatches, loss_fn=loss_of
    )
    optimizer = torch.optim.AdamW(mine.parameters(), lr=options.lr)
    twin = nn.Sequential(*make_layers(options)) if options.compare and is_last else None
    twin_optimizer = torch.optim.AdamW(twin.parameters(), lr=options.lr) if twin else None
    if is_last:
        print(f"{len(text):,} letters; {len(mine)} of {len(layers)} layers are on the last of {ranks} rank(s)")

    loss = alone = None
    for step in range(1, options.steps + 1):
        letters, following = passages(text, step, options)
        losses = []
        optimizer.zero_grad()
        # The first rank gives the letters, and the last rank gets the losses. torch does the rest.
        pipeline.step(*([letters] if is_first else []), **({"target": following, "losses": losses} if is_last else {}))
        optimizer.step()
        if is_last:
            loss = torch.stack(losses).mean().item()
        if twin:
            twin_optimizer.zero_grad()
            alone = loss_of(twin(letters), following)
            alone.backward()
            twin_optimizer.step()
            alone = alone.item()
        if is_last and (step % options.report_every == 0 or step == options.steps):
            compared = f", of one process {alone:.4f}" if twin else ""
            print(f"step {step}: loss {loss:.4f} on {ranks} rank(s){compared}", flush=True)
    dist.destroy_process_group()
    return loss, alone


if __name__ == "__main__":
    main()
