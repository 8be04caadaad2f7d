"""Makes the fixed fusion plan of an optimizer: every rank cuts the same parameters into the same buckets."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hvdlite.auto_compression import settle
from hvdlite.compression import Compression, describe_compression, refuse_codec
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.partition import part_of
from hvdlite.runtime import RUNTIME
from hvdlite.torch.agreement import ReducerSettings
from hvdlite.torch.buckets import cut_buckets
from hvdlite.torch.coded_bucket import CodedBucket
from hvdlite.torch.coded_methods import bucket_codec_of
from hvdlite.torch.in_flight import Bucket, DenseBucket, SparseBucket
from hvdlite.torch.parameter_gradient import ParameterGradient, WireForm

Groups = Sequence[Sequence[str]] | int | None  # lists of parameters' names, a number of groups, or None


def make_buckets(
    settings: ReducerSettings,
    gradients: Sequence[ParameterGradient],
    groups: Groups,
    generation: int,
) -> list[Bucket]:
    """Cuts the parameters into buckets.

    If the compression is `Compression.auto`, its first use with a process set is collective: the ranks of the set measure the
    link between their hosts.

    Frozen parameters whose dtype cannot be reduced, such as float8, are in no bucket.

    Args:
        settings: the settings of the optimizer.
        gradients: the parameters in the order of the model; backward usually computes their gradients in the opposite order.
        groups: the user's choice of parameters to reduce together.
        generation: the number of the plan, which makes the buckets' labels differ from those of earlier plans.

    Raises:
        UnsupportedError: the compression is a codec or keeps state, but a gradient is reduced as a sparse one; or the
            compression keeps state, but a gradient is not in host memory.
        InvalidArgumentError: a parameter that is not frozen has gradients of a dtype that cannot be reduced.
        InvalidArgumentError, UnsupportedError, HorovodInternalError: (with `Compression.auto`) as for
            `hvdlite.auto_compression.settle`.

    """
    buckets: list[Bucket] = []
    codec, settled = bucket_codec_of(settings.compression), _settled(settings, gradients)
    compression = settled if codec is None else Compression.none
    forms: dict[ParameterGradient, WireForm] = {}
    for gradient in reversed(gradients):
        if gradient.sparse_dim is not None and not settings.sparse_as_dense:
            refuse_codec(settled, f"the sparse gradient of parameter {gradient.name!r} (without sparse_as_dense=True)")
            buckets.append(SparseBucket(gradient, settings))
        else:
            if codec is not None and gradient.param.device.type != "cpu":
                raise UnsupportedError(
                    f"parameter {gradient.name!r} is on {gradient.param.device}, and compression is "
                    f"{describe_compression(settings.compression)}, which works in host memory only: pass "
                    "hvdlite.Compression.bf16, or keep the model on the CPU"
                )
            try:
                forms[gradient] = WireForm(gradient.param, gradient.dtype, compression)
            except InvalidArgumentError:
                if gradient.param.requires_grad:
                    raise
    for number, members in enumerate(_cut(forms, groups, codec is not None and codec.one_bucket)):
        label = f"{settings.prefix}.plan{generation}.bucket{number}"
        pairs = [(gradient, forms[gradient]) for gradient in members]
        if codec is None:
            buckets.append(DenseBucket(label, pairs, settings))
        else:
            buckets.append(CodedBucket(label, pairs, codec, settings))
    return buckets


def _settled(settings: ReducerSettings, gradients: Sequence[ParameterGradient]) -> Any:
    """The settings' compression; for `Compression.auto` the compression chosen for these gradients, the same on all ranks."""
    trained = [gradient for gradient in gradients if gradient.param.requires_grad]
    dense = [gradient for gradient in trained if gradient.sparse_dim is None or settings.sparse_as_dense]
    numbers = [(str(gradient.dtype).removeprefix("torch."), gradient.param.numel()) for gradient in dense]
    codes = dense == trained and all(gradient.param.device.type == "cpu" for gradient in dense)
    return settle(settings.compression, settings.process_set, settings.op, numbers, codes=codes)


def _cut(forms: Mapping[ParameterGradient, WireForm], groups: Groups, together: bool) -> list[list[ParameterGradient]]:
    """Cuts dense gradients into buckets. together: do all trained parameters share one bucket, whatever their dtypes?"""
    config = RUNTIME.config
    gradients = list(forms)
    if isinstance(groups, int):
        count = len(gradients)
        wanted = {gradients[place].name: number for number in range(groups) for place in part_of(count, groups, number)}
    else:
        wanted = {name: number for number, names in enumerate(groups or ()) for name in names}
    kinds: list[tuple[object, ...]] = []
    sizes: list[int] = []
    for gradient, form in forms.items():
        # A frozen parameter gets no gradient, so a bucket with a frozen and a trained parameter would never be complete before
        # the end of the pass. So frozen parameters have buckets of their own. Gradients on different devices have different
        # buckets, too. (With `together` all gradients are in host memory.)
        kind = (form.dtype, form.device, form.flags, gradient.param.requires_grad)
        number = wanted.get(gradient.name)
        kinds.append((number, *(kind[-1:] if together else kind)))
        sizes.append(form.nbytes if number is None else 0)  # a group of the user has no limit
    limits = (sys.maxsize, sys.maxsize) if together else (config.bucket_bytes, config.first_bucket_bytes)
    return [[gradients[place] for place in places] for places in cut_buckets(kinds, sizes, *limits)]
