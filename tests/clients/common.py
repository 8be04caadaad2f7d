"""What the programs of this folder share: the images that they learn, and what must hold in the end."""

import hashlib

import numpy as np

import hvdlite


def digits():
    """scikit-learn's 1797 images of handwritten digits, in the same order on all ranks: (images, labels), first to learn, then
    to test."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = (data.data[order] / 16).astype(np.float32), data.target[order].astype(np.int64)
    return (images[:-360], labels[:-360]), (images[-360:], labels[-360:])


def check_backend():
    """Fails unless torch.distributed runs on hvdlite."""
    import torch.distributed as dist

    assert dist.get_backend() == "hvdlite", dist.get_backend()


def report(client, arrays, losses=None, accuracy=None):
    """Fails unless all ranks have the same arrays and have learnt; rank 0 prints one line.

    Args:
        client: its name and version.
        arrays: the model's parameters, as NumPy arrays.
        losses: the first and the last one.
        accuracy: of the test images, 0 to 1.
    """
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]
    digests = hvdlite.allgather_object(digest, name="clients.report")
    assert len(digests) == hvdlite.size() > 1, f"{len(digests)} rank: was this started with mpirun?"
    assert len(set(digests)) == 1, f"the ranks' parameters differ: {digests}"
    if losses is not None:
        assert losses[1] < 0.8 * losses[0], f"nothing was learnt: the loss went from {losses[0]:.3f} to {losses[1]:.3f}"
    if accuracy is not None:
        assert accuracy > 0.9, f"too little was learnt: {100 * accuracy:.1f} % of the test images are right"
    if hvdlite.rank() == 0:
        learnt = f"{100 * accuracy:.1f} % right" if accuracy is not None else f"loss {losses[0]:.3f} -> {losses[1]:.3f}"
        print(f"{client}: {learnt}, parameters bit-identical on {len(digests)} ranks ({digest})", flush=True)
