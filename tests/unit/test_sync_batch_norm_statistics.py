"""How SyncBatchNorm joins the statistics of several ranks, in one process."""

import pytest

torch = pytest.importorskip("torch")

from hvdlite.process_sets import global_process_set  # noqa: E402


@pytest.fixture(scope="module")
def sync_batch_norm():
    """The module, which imports torch's compiler: that takes a second and a half."""
    import hvdlite.torch.sync_batch_norm

    return hvdlite.torch.sync_batch_norm


def joined(sync_batch_norm, parts, monkeypatch):
    """What each of the ranks with these inputs makes of them all."""
    sent = []
    monkeypatch.setattr(sync_batch_norm.ops, "allgather", lambda row, *_: sent.append(row) or row)
    owns = [sync_batch_norm._LocalValues(part) for part in parts]
    for own in owns:
        own.with_others("", global_process_set)
    monkeypatch.setattr(sync_batch_norm.ops, "allgather", lambda *_: torch.cat(sent))
    return [own.with_others("", global_process_set) for own in owns]


@pytest.mark.parametrize("sizes", [(3, 4), (0, 5), (1, 1, 1), (2, 0, 7, 1), (5,)], ids=str)
@pytest.mark.parametrize(("center", "spread"), [(0.0, 1.0), (1e5, 1.0), (-3e-6, 1e-9), (1e4, 1e4)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
def test_moments_are_those_of_all_values(sync_batch_norm, sizes, center, spread, memory_format, monkeypatch):
    generator = torch.Generator().manual_seed(sum(sizes))
    parts = [center + spread * (torch.randn(rows, 3, 40, 25, generator=generator) + rows) for rows in sizes]
    parts = [part.contiguous(memory_format=memory_format) for part in parts]
    everyone = torch.cat(parts).double()
    for whole in joined(sync_batch_norm, parts, monkeypatch):
        assert whole.count == everyone.numel() // 3
        mean, var = everyone.mean((0, 2, 3)), everyone.var((0, 2, 3), correction=0)
        # Far below a float32 ulp of the center: the squares of 1e5 would leave nothing of a variance of 1.
        assert ((whole.mean - mean).abs() <= 2e-7 * everyone.std()).all()
        assert ((whole.var - var).abs() <= 1e-6 * var).all()


def test_constant_values_have_no_variance(sync_batch_norm, monkeypatch):
    parts = [torch.full((rows, 2), 0.1) for rows in (3, 5)]
    for whole in joined(sync_batch_norm, parts, monkeypatch):
        assert (whole.var >= 0).all()
        assert (whole.var < 1e-16).all()


def test_no_values(sync_batch_norm, monkeypatch):
    for whole in joined(sync_batch_norm, [torch.empty(0, 2), torch.empty(0, 2)], monkeypatch):
        assert whole.count == 0
        assert torch.equal(whole.mean, torch.zeros(2, dtype=torch.float64))


def test_needs_no_initialisation_to_be_made_and_to_evaluate(sync_batch_norm):
    norm, twin = sync_batch_norm.SyncBatchNorm(3).eval(), torch.nn.BatchNorm1d(3).eval()
    values = torch.randn(4, 3)
    assert torch.equal(norm(values), twin(values))


def test_positional_arguments_are_horovods(sync_batch_norm):
    norm = sync_batch_norm.SyncBatchNorm(3, 0.1, None, False, True)
    assert (norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats) == (3, 0.1, None, False, True)
