"""Settles `Compression.auto`: chooses none, bf16 or int8 for given tensors, by the predicted time of a training step.

The ranks of a process set measure the link between their hosts once, at the first use, and agree on the figures of the link.
From these figures each rank computes the choice by the model of `hvdlite.tuning.link_model`. So all ranks choose the same,
without further messages. The choice depends on the number of elements: a large tensor may be coded, and a small one not.
"""

import logging
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from hvdlite.backends import backend_of
from hvdlite.backends.base import CPU
from hvdlite.checks import check_type_of_set
from hvdlite.compression import AutoCompression, Compression, refuse_codec
from hvdlite.dtypes import DType
from hvdlite.errors import InvalidArgumentError, UnsupportedError
from hvdlite.link_measurement import measure_link
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import OP_NAMES, Average, Sum
from hvdlite.runtime import RUNTIME
from hvdlite.tuning.link_model import (
    BF16,
    INT8,
    NONE,
    ExchangeMethod,
    Gradients,
    HostLink,
    bucket_sizes,
    choose,
    describe,
    format_seconds,
    step_seconds,
)

_SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
_CODED = {"float16", "bfloat16", "float32"}
_NARROWED = {"float32", "float64"}
_RESULTS = {NONE: Compression.none, BF16: Compression.bf16, INT8: Compression.int8()}

# The link between the hosts of a process set, by the ranks of the set; and the choices that were logged. Cleared at `shutdown`.
_links: dict[tuple[int, ...], HostLink] = {}
_logged: set[tuple[tuple[int, ...], ExchangeMethod]] = set()


def settle(
    compression: Any,
    process_set: ProcessSet,
    op: int,
    tensors: Iterable[tuple[str, int]],
    *,
    codes: bool = True,
    narrows: bool = True,
    traced: bool = False,
) -> Any:
    """The compression argument itself; if it is `Compression.auto`, the compression that is chosen for these tensors.

    The first use of `Compression.auto` with a process set is collective over that set. All ranks get the same choice.

    Args:
        compression: any compression argument.
        process_set: the ranks that reduce the tensors.
        op: the operator of the reduction.
        tensors: for each tensor the name of its dtype and the number of its elements, the same on all ranks.
        codes: can the engine code these tensors (they are dense, and in host memory)? The same on all ranks.
        narrows: can the tensors be converted to bfloat16? The same on all ranks.
        traced: may a compiled program keep the choice?

    Raises:
        InvalidArgumentError: (only for `Compression.auto`) the knob deterministic is on; `process_set` is no process set; or
            this rank is not in the set.
        UnsupportedError: (only for `Compression.auto`) the op is neither Sum nor Average; the job is elastic, and a compiled
            program may keep the choice; or a rank had called `join` before the measurement.
        HorovodInternalError: an operation of the measurement failed.
    """
    if not isinstance(compression, AutoCompression):
        return compression
    check_type_of_set(process_set)
    if op not in (Average, Sum):
        refuse_codec(compression, f"a reduction with op={OP_NAMES[op]}")
    if RUNTIME.config.deterministic:
        raise InvalidArgumentError(
            "compression is auto, and HVDLITE_DETERMINISTIC is set: a choice by measurement can differ from run to run. "
            "Name one compression; `hvdlite tune --link` says which one makes a step shorter"
        )
    if traced and RUNTIME.pool is not None:
        raise UnsupportedError(
            "compression is auto, and the job is elastic: ranks that join later would measure, while the compiled programs of "
            "the other ranks keep an earlier choice. "
            "Name one compression; `hvdlite tune --link` says which one makes a step shorter"
        )
    found = list(tensors)
    dtypes = {dtype for dtype, _ in found}
    link = _link_of(process_set)
    elements = sum(count for _, count in found)
    if not elements or not dtypes <= _SIZES.keys():
        return Compression.none
    methods = [NONE]
    methods += [BF16] if narrows and dtypes <= _NARROWED else []
    methods += [INT8] if codes and dtypes <= _CODED else []
    itemsize = sum(_SIZES[dtype] * count for dtype, count in found) / elements
    config = RUNTIME.config
    buckets = bucket_sizes(elements, config.first_bucket_bytes, config.bucket_bytes, itemsize)
    gradients = Gradients(buckets, itemsize)
    seconds = {method: step_seconds(link, method, gradients, compression.step_time) for method in methods}
    method = choose(methods, seconds.__getitem__)
    _log(process_set, link, method, seconds, elements)
    return _RESULTS[method]


def settle_for_tensors(compression: Any, process_set: ProcessSet, op: int, tensors: Sequence[Any]) -> Any:
    """`settle` for tensors that have a `hvdlite.backends.TensorBackend`."""
    if not isinstance(compression, AutoCompression):
        return compression
    backends = [backend_of(tensor) for tensor in tensors]
    exported = [backend.export(backend.adopt(tensor), True) for backend, tensor in zip(backends, tensors, strict=True)]
    numbers = [(DType(each.dtype).label, math.prod(each.shape)) for each in exported]
    # NumPy and CuPy have bfloat16 only with ml_dtypes. Arrays of the backend "CUDA array" are never converted.
    frameworks = {backend.name for backend in backends}
    narrows = frameworks <= {"torch"} or ("ml_dtypes" in sys.modules and "CUDA array" not in frameworks)
    return settle(
        compression,
        process_set,
        op,
        numbers,
        codes=all(each.device == CPU for each in exported),
        narrows=narrows,
    )


def _link_of(process_set: ProcessSet) -> HostLink:
    """The link between the hosts of the set's ranks. The first call for these ranks is collective."""
    ranks = tuple(process_set.ranks or ())
    if ranks not in _links:
        link = measure_link(process_set)
        if not _links:
            RUNTIME.at_stop += [_links.clear, _logged.clear]
        _links[ranks] = link
    return _links[ranks]


def _log(
    process_set: ProcessSet, link: HostLink, method: ExchangeMethod, seconds: dict[ExchangeMethod, float], elements: int
) -> None:
    """The first rank logs each choice once for a process set, with its reason."""
    key = (tuple(process_set.ranks or ()), method)
    if key in _logged:
        return
    _logged.add(key)
    if process_set.rank() != 0:
        return
    if link.hosts < 2:
        reason = f"the {process_set.size()} ranks are on one host"
    else:
        times = ", ".join(f"{each.name} {format_seconds(own)}" for each, own in seconds.items())
        reason = f"{describe(link)}; predicted for {elements:,} elements: {times}"
    logging.getLogger("hvdlite").warning("Compression.auto chooses %s: %s", method.name, reason)
