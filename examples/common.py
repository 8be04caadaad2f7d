"""The code that the examples share: arguments, data, and printing. This file is not an example itself.

It needs no framework. If you copy an example, copy this file, too.
"""

import argparse
import hashlib
import importlib.util
import pydoc_data.topics
import sys
from collections.abc import Callable, Iterable, Sequence

import numpy as np

# --- arguments --------------------------------------------------------------------------------------------------------


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and the description as it is written."""


def make_parser(doc: str) -> argparse.ArgumentParser:
    """A parser whose --help shows the example's docstring, and the default of each argument."""
    return argparse.ArgumentParser(description=doc, formatter_class=_HelpFormatter)


def add_training(parser: argparse.ArgumentParser, lr: float = 0.02) -> None:
    """Adds the arguments of every training on the digits."""
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training images")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a batch of each rank")
    parser.add_argument("--lr", type=float, default=lr, help="learning rate for one rank; n ranks take n times this rate")


def parse_digits(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, checkpoint: str, warmup: type = float, logs: bool = False
) -> argparse.Namespace:
    """Adds the arguments that the digits programs with checkpoints have in common, and reads the command line.

    Args:
        parser: from `make_parser`, with the example's own arguments.
        argv: the arguments, or None for those of the process.
        checkpoint: the kind of the argument of ``--checkpoint``: "FILE" or "FOLDER".
        warmup: the type of ``--warmup-epochs``.
        logs: is there an argument ``--logs``, for TensorBoard?
    """
    add_training(parser)
    parser.add_argument("--warmup-epochs", type=warmup, default=2, help="epochs in which the rate rises to that of n ranks")
    parser.add_argument("--compression", choices=("none", "fp16", "bf16"), default="none", help="how gradients travel")
    parser.add_argument("--checkpoint", metavar=checkpoint, help="where rank 0 saves the training after each epoch")
    parser.add_argument("--resume", action="store_true", help="continue from what --checkpoint names")
    parser.add_argument("--seed", type=int, default=1, help="of the initial weights and the order of the images")
    if logs:
        parser.add_argument("--logs", metavar="FOLDER", help="where rank 0 writes what TensorBoard shows")
    arguments = parser.parse_args(argv)
    if arguments.resume and not arguments.checkpoint:
        parser.error(f"--resume needs --checkpoint {checkpoint}")
    if logs and arguments.logs and importlib.util.find_spec("tensorboard") is None:
        parser.error("--logs needs TensorBoard: pip install tensorboard")
    return arguments


# --- data -------------------------------------------------------------------------------------------------------------

TEST_IMAGES = 360


def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """scikit-learn's 1797 handwritten digits: training images and labels, and test images and labels, the same on all ranks.

    Images are float32 [n, 8, 8] from 0 to 1, labels int64 [n]; their order is shuffled. Without scikit-learn the program ends.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        sys.exit(f"the digits come with scikit-learn ({error}): pip install scikit-learn, or '.[examples]' in the clone")
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = data.images[order].astype(np.float32) / 16.0, data.target[order].astype(np.int64)
    return (images[:-TEST_IMAGES], labels[:-TEST_IMAGES]), (images[-TEST_IMAGES:], labels[-TEST_IMAGES:])


LETTERS = sorted({*"\n !\"'(),-.:;`", *"abcdefghijklmnopqrstuvwxyz", *"0123456789"})


def help_texts() -> np.ndarray:
    """Python's own help texts as numbers of LETTERS: int64 [n]."""
    numbers = {letter: number for number, letter in enumerate(LETTERS)}
    text = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())).lower()
    return np.array([numbers[letter] for letter in text if letter in numbers])


# --- printing ---------------------------------------------------------------------------------------------------------


def speaker(rank: int) -> Callable[..., None]:
    """`print` on rank 0, and nothing on the others, so that the job prints each line once. Lines are flushed."""

    def say(*words: object) -> None:
        if rank == 0:
            print(*words, flush=True)

    return say


def progress_bar(rank: int, title: str) -> Callable[[float, float], None]:
    """A function of (fraction done, loss) that draws a bar on rank 0's terminal; without a terminal, it does nothing."""
    if rank != 0 or not sys.stderr.isatty():
        return lambda fraction, loss: None

    def show(fraction: float, loss: float) -> None:
        bar = ("#" * round(30 * fraction)).ljust(30, ".")
        end = "\r" if fraction < 1 else "\r\033[K"
        print(f"{title} [{bar}] loss {loss:.3f}", end=end, file=sys.stderr, flush=True)

    return show


def describe_weights(weights: Iterable[np.ndarray], allgather_object: Callable[[str], list[str]]) -> str:
    """A line that says whether all ranks hold the same bits. All ranks call it.

    Args:
        weights: this rank's, in the same order on all ranks.
        allgather_object: hvdlite's, which gives each rank's checksum.
    """
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in weights)).hexdigest()
    digests = allgather_object(digest)
    same = "bit-identical" if len(set(digests)) == 1 else "DIFFERENT: this is a bug"
    return f"weights on the {len(digests)} rank(s) are {same}"
