"""The pure parts: cutting into buckets, comparing descriptions, looking at strides."""

import pytest
import torch
from support.seeds import seeds

from hvdlite.agreement import difference
from hvdlite.torch.agreement import ReducerSettings
from hvdlite.torch.buckets import cut_buckets
from hvdlite.torch.parameter_gradient import ParameterGradient, is_dense
from hvdlite.torch.plan import make_buckets

RANKS = (1,)


@pytest.mark.parametrize(
    ("kinds", "sizes", "expected"),
    [
        ("", [], []),
        ("a", [1000], [[0]]),
        ("aaaa", [10, 10, 80, 90], [[0, 1], [2], [3]]),
        ("aaaa", [30, 40, 50, 10], [[0], [1, 2, 3]]),
        ("aaa", [10, 0, 10], [[0, 1, 2]]),
        ("aaa", [200, 20, 20], [[0], [1, 2]]),
        ("abab", [10, 60, 10, 40], [[0, 2], [1, 3]]),
        ("abba", [20, 60, 60, 20], [[0], [1], [2], [3]]),
    ],
)
def test_cut_buckets(kinds, sizes, expected):
    assert cut_buckets(kinds, sizes, limit=100, first_limit=20) == expected


@pytest.mark.parametrize("seed", seeds(range(5)))
def test_every_tensor_is_in_one_bucket_of_its_kind(seed):
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 3, (50,), generator=generator).tolist()
    sizes = torch.randint(0, 60, (50,), generator=generator).tolist()
    buckets = cut_buckets(kinds, sizes, limit=100, first_limit=30)
    assert sorted(place for bucket in buckets for place in bucket) == list(range(50))
    for bucket in buckets:
        assert bucket == sorted(bucket)
        assert len({kinds[place] for place in bucket}) == 1
        assert len(bucket) == 1 or sum(sizes[place] for place in bucket) <= 100
    assert [bucket[0] for bucket in buckets] == sorted(bucket[0] for bucket in buckets)


def test_is_dense():
    base = torch.empty(4, 6, 2)
    for dense in (base, base.t() if base.dim() == 2 else base.permute(2, 0, 1), base[:, :, :].transpose(0, 1), base[0]):
        assert is_dense(dense)
    assert is_dense(torch.empty(()))
    assert is_dense(torch.empty_strided((3, 0), (1, 1)))
    assert is_dense(torch.empty_strided((1, 5), (77, 1)))
    for other in (base[:, ::2], base[:, :, 0], base[:1].expand(4, 6, 2), base[:, 1:]):
        assert not is_dense(other)


def test_difference():
    one = [("op", "Average"), ("a", "float32 [2]"), ("b", "float32 [3]")]
    two = [("op", "Average"), ("a", "float32 [2]")]
    assert difference({0: one, 2: two, 5: one}) == "b is float32 [3] on ranks 0, 5, but missing on rank 2"
    three = [("op", "Average"), ("a", "float64 [2]"), ("b", "float32 [3]")]
    assert difference({0: one, 1: three}) == "a is float32 [2] on rank 0, but a is float64 [2] on rank 1"


def test_frozen_parameters_hold_up_nobody(hvd):
    """A bucket with one of them would not be complete before the end of the pass."""
    params = [torch.nn.Parameter(torch.ones(3), requires_grad=place != 1) for place in range(3)]
    gradients = [ParameterGradient(f"p{place}", param) for place, param in enumerate(params)]
    settings = ReducerSettings(
        prefix="plan",
        op=hvd.Average,
        gradient_predivide_factor=1.0,
        compression=hvd.Compression.none,
        backward_passes_per_step=1,
        average_aggregated_gradients=False,
        sparse_as_dense=False,
        process_set=hvd.global_process_set,
        gradient_as_bucket_view=None,
        start_check="off",
        shard=False,
    )
    for groups in (None, 1, [["p0", "p1", "p2"]]):
        buckets = make_buckets(settings, gradients, groups, 1)
        assert [[gradient.name for gradient in bucket.gradients] for bucket in buckets] == [["p2", "p0"], ["p1"]]


def test_a_result_goes_to_the_device_of_its_parameter():
    """Gradients on devices that the engine cannot use are reduced in host memory."""
    gradient = ParameterGradient("p", torch.nn.Parameter(torch.zeros(3, 2, device="meta")))
    assert gradient.store(None, torch.ones(3, 2), True).device.type == "meta"
    gradient.replace(torch.ones(3, 2), torch.ones(3, 2).to_sparse(1))
    assert gradient.param.grad.device.type == "meta"
