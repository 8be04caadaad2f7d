"""A small transformer learns English from Python's own help texts, its layers dealt out to the ranks (torch's pipelining).

    mpirun -n 2 python torch_pipeline.py --schedule 1F1B

You should see how many layers the last rank has, and a loss that falls from about 4 to about 1.5 in 300 steps.

hvdlite is the backend of torch.distributed here: each rank has some of the layers, and torch's schedules send activations to
the next rank and gradients to the one before, in microbatches, by hvdlite's messages from rank to rank. With --compare, the
last rank also trains the whole model alone, and each line has both losses: they are equal but for rounding.
"""

import common
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import hvdlite.torch.distributed

SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def parse_arguments(argv=None):
    """The command line; --help shows it."""
    parser = common.make_parser(__doc__)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B", help="the order of the microbatches")
    parser.add_argument("--microbatches", type=int, default=8, help="in which a batch goes through the ranks")
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--batch-size", type=int, default=32, help="passages in a batch; a multiple of --microbatches")
    parser.add_argument("--length", type=int, default=64, help="letters of a passage")
    parser.add_argument("--width", type=int, default=128, help="of the model")
    parser.add_argument("--layers", type=int, default=4, help="of the model")
    parser.add_argument("--lr", type=float, default=0.002, help="learning rate")
    parser.add_argument("--report-every", type=int, default=50, help="steps between reports")
    parser.add_argument("--compare", action="store_true", help="also train in one process")
    return parser.parse_args(argv)


def passages(text, step, options):
    """The batch of one step, the same on all ranks: letters, and what follows each."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(text) - options.length - 1, (options.batch_size,), generator=generator)
    found = torch.stack([text[start : start + options.length + 1] for start in starts])
    return found[:, :-1], found[:, 1:]


class Letters(nn.Module):
    """Letters and their places as vectors."""

    def __init__(self, options):
        super().__init__()
        self.letters = nn.Embedding(len(common.LETTERS), options.width)
        self.places = nn.Embedding(options.length, options.width)

    def forward(self, letters):
        """One vector for each letter."""
        return self.letters(letters) + self.places.weight[: letters.shape[1]]


class Layer(nn.TransformerEncoderLayer):
    """Of a decoder: each place sees those before it."""

    def forward(self, x):
        """Vectors to vectors."""
        return super().forward(x, src_mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]), is_causal=True)


def make_layers(options):
    """All layers from letters to scores of the letters that follow, the same on all ranks."""
    torch.manual_seed(0)
    width = options.width
    layers = [Layer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(options.layers)]
    return [Letters(options), *layers, nn.Linear(width, len(common.LETTERS))]


def loss_of(scores, following):
    """How well the letters that follow were guessed."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def main(argv=None):
    """Trains; returns the last loss, and that of one process where --compare asks for it; None on all ranks but the last."""
    options = parse_arguments(argv)
    dist.init_process_group(hvdlite.torch.distributed.BACKEND)  # under mpirun it needs no addresses and no variables
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
        # Letters go in at the first rank, losses come out at the last; what is between them is torch's.
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
