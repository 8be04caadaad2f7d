"""A model of the time of a training step whose gradients cross a link between hosts, for each method of reducing them.

In an allreduce over h hosts, each host sends 2 (h - 1) / h times the bytes of the tensor (Patarasuk and Yuan, "Bandwidth
Optimal All-reduce Algorithms for Clusters of Workstations", JPDC 2009). A backward pass takes two thirds of the computation of
a step. During the backward pass buckets of gradients become ready one after the other, and the link sends one bucket at a time.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

# A less accurate method is chosen only if it makes a step shorter by at least this share and by at least these seconds.
LEAST_GAIN, _LEAST_SAVING = 0.1, 1e-3
FORWARD = 1 / 3  # the share of the computation before the first gradient: a backward pass takes twice as long as a forward one
_SCALE = 4 / 256  # bytes of scales for each element, with one float32 scale for a block of 256 elements
LOW_RANK_SIDE = 1024  # PowerSGD's bytes depend on the shapes of the matrices: the model assumes this many rows and columns
_LOW_RANK = 2  # columns of a factor

# `find_link` begins with _FEWEST elements in a message, and takes more until one takes _LONG seconds or has _MOST elements.
_LONG, _FEWEST, _MOST = 0.25, 1 << 14, 1 << 20
_REPEATS = 3  # measurements of each kind, fewer if one takes longer than `_LONG`


@dataclass(frozen=True)
class HostLink:
    """What is measured of the link between the hosts of a job, and of a rank's core.

    Attributes:
        hosts: the number of hosts; with 1 there is no link.
        latency: the seconds of an allreduce between hosts in addition to the time of its bytes.
        rate: the bytes a second that each host sends during a large allreduce.
        coding: the seconds that a rank needs to code and decode an element with int8. The model uses them for bf16 and int4,
            too.
        factoring: the seconds that a rank needs for PowerSGD's matrix products, for each element.
        ranks: the number of ranks; 0: one on each host.
    """

    hosts: int
    latency: float
    rate: float
    coding: float = 0.0
    factoring: float = 0.0
    ranks: int = 0

    def sent_bytes(self, itemsize: float) -> float:
        """The mean bytes that are sent for an element of this size, in an allreduce without a codec.

        A partial sum of 16-bit elements is sent as float32; elements and complete sums are sent with 16 bits. Two ranks send no
        partial sums. If ranks share hosts, a host adds the elements of its ranks first, so it sends no elements. Otherwise the
        model assumes the ring algorithm, in which the first message of a rank has elements.
        """
        ranks = self.ranks or self.hosts
        if itemsize > 2 or ranks == 2:
            return itemsize
        return 3.0 if ranks > self.hosts else (3 * ranks - 4) / (ranks - 1)

    def sending(self, nbytes: float) -> float:
        """The seconds in which each host sends its part of an allreduce of this size in bytes."""
        return 2 * (self.hosts - 1) / self.hosts * nbytes / self.rate


@dataclass(frozen=True)
class ExchangeMethod:
    """A method to reduce the gradients of a step.

    Attributes:
        name: the name in tables, in the log and in names of requests; for a method with a codec also the name of the codec.
        argument: the argument of `DistributedOptimizer` that chooses the method; "" for the default.
        element_bytes: bytes that are sent for each element; None: as many as the element has.
        codes: does a rank code and decode the elements?
        rounds: the number of allreduces, one after the other, that reduce a bucket.
        passes: the number of backward passes for each reduction.
    """

    name: str
    argument: str
    element_bytes: float | None = None
    codes: bool = False
    rounds: int = 1
    passes: int = 1

    @property
    def one_bucket(self) -> bool:
        """Are all gradients reduced together, after the backward pass?"""
        return self.rounds > 1


NONE = ExchangeMethod("none", "")
BF16 = ExchangeMethod("bf16", "compression=hvd.Compression.bf16", 2, codes=True)
INT8 = ExchangeMethod("int8", "compression=hvd.Compression.int8()", 1 + _SCALE, codes=True)
INT4 = ExchangeMethod("int4", "compression=hvd.Compression.int4()", 0.5 + _SCALE, codes=True)
POWERSGD = ExchangeMethod(
    "powersgd", f"compression=hvd.Compression.powersgd(rank={_LOW_RANK})", 4 * 2 * _LOW_RANK / LOW_RANK_SIDE, rounds=2
)
ACCUMULATE = ExchangeMethod("accumulate 4", "backward_passes_per_step=4", passes=4)

# The methods, from the most to the least accurate one; `AUTO_METHODS` are those that hvdlite chooses from by itself.
AUTO_METHODS = (NONE, BF16, INT8)
ALL_METHODS = (*AUTO_METHODS, INT4, POWERSGD, ACCUMULATE)


@dataclass(frozen=True)
class Gradients:
    """The gradients of a step.

    Attributes:
        buckets: the number of elements of each bucket, in the order in which a backward pass makes them.
        itemsize: the mean bytes of an element, 4 for float32.
    """

    buckets: tuple[int, ...]
    itemsize: float = 4


def bucket_sizes(elements: int, first_bytes: int, bucket_bytes: int, itemsize: float = 4) -> tuple[int, ...]:
    """The elements of each bucket, if no parameter is larger than the knobs first_bucket_bytes and bucket_bytes allow."""
    sizes = []
    limits = itertools.chain((first_bytes,), itertools.repeat(bucket_bytes))
    while elements > 0:
        sizes.append(min(elements, max(1, int(next(limits) / itemsize))))
        elements -= sizes[-1]
    return tuple(sizes)


def step_seconds(link: HostLink, method: ExchangeMethod, gradients: Gradients, compute: float) -> float:
    """The predicted seconds of a step.

    Args:
        link: the link and the core.
        method: how gradients are reduced.
        gradients: what is reduced.
        compute: the seconds of the step without communication; with several backward passes for each reduction, of one pass.

    Returns:
        The seconds of the step; with several backward passes for each reduction, the mean over these passes.
    """
    total = sum(gradients.buckets)
    if link.hosts < 2 or not total:
        return compute
    itemsize = gradients.itemsize if method.element_bytes is None else min(method.element_bytes, gradients.itemsize)
    if method.element_bytes is None or method is BF16:
        itemsize = link.sent_bytes(itemsize)
    busy = link.coding * method.codes + link.factoring * (method is POWERSGD)
    free, made = 0.0, 0
    for size in (total,) if method.one_bucket else gradients.buckets:
        made += size
        ready = compute * (FORWARD + (1 - FORWARD) * made / total)
        free = max(ready, free) + link.sending(itemsize * size) + busy * size
    end = free + method.rounds * link.latency
    return (max(compute, end) + (method.passes - 1) * compute) / method.passes


def choose(methods: Iterable[ExchangeMethod], seconds: Callable[[ExchangeMethod], float]) -> ExchangeMethod:
    """The method to use. A later method replaces the best earlier one only if a step gets at least 10 % and 1 ms shorter.

    Args:
        methods: the methods, from the most to the least accurate one.
        seconds: a function that returns the seconds of a step with a method.
    """
    first, *others = methods
    best, least = first, seconds(first)
    for method in others:
        own = seconds(method)
        if _pays(own, least):
            best, least = method, own
    return best


def _pays(seconds: float, without: float) -> bool:
    return seconds < min((1 - LEAST_GAIN) * without, without - _LEAST_SAVING)


# --- measurement --------------------------------------------------------------------------------------------------------


def find_link(hosts: int, ranks: int, probe: Callable[[int, bool], float]) -> HostLink:
    """Measures a link by allreduces: their time is a latency, and a time for each element.

    Messages grow until one takes 0.25 s, or has 4 MiB. So all messages together take less than four seconds on a link
    of 1 Mbit/s or more.

    Args:
        hosts: the number of hosts.
        ranks: the number of ranks.
        probe: a function that runs one allreduce, and returns its seconds on the slowest rank. Its arguments are the number of
            float32 elements, and whether the codec int8 is used. All ranks get the same seconds, so all
            ranks find the same link.
    """
    if hosts < 2:
        return HostLink(hosts, 0.0, float("inf"), ranks=ranks)
    elements = _FEWEST
    probe(elements, False)  # makes the connections
    while (longest := probe(elements, False)) < _LONG and elements < _MOST:
        elements *= 4
    repeats = max(1, min(_REPEATS, int(_REPEATS * _LONG / longest)))
    small = elements // 4

    def least(count: int, coded: bool) -> float:
        return min(probe(count, coded) for _ in range(repeats))

    short, long = least(small, False), min(longest, least(elements, False))
    each = max((long - short) / (elements - small), 1e-12)
    latency = max(short - each * small, 0.0)
    probe(small, True)
    assert INT8.element_bytes is not None
    coding = (least(elements, True) - latency) / elements - each * INT8.element_bytes / 4
    return HostLink(hosts, latency, 2 * (hosts - 1) / hosts * 4 / each, max(coding, 0.0), ranks=ranks)


def format_seconds(seconds: float) -> str:
    """A duration for a text, in seconds or milliseconds."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def describe(link: HostLink) -> str:
    """The link as a part of a sentence."""
    return (
        f"{link.hosts} hosts, latency {format_seconds(link.latency)}, {link.rate / 1e6:.3g} MB/s from each host, "
        f"{1e9 * link.coding:.2g} ns to code an element"
    )


def table(rows: Sequence[tuple[ExchangeMethod, float, float]]) -> list[str]:
    """Lines of a table of methods: the predicted seconds of a step, and the measured ones."""
    lines = [f"{'method':14}{'predicted':>12}{'measured':>12}  argument of DistributedOptimizer"]
    for method, predicted, measured in rows:
        times = "".join(f"{f'{1e3 * seconds:.1f} ms':>12}" for seconds in (predicted, measured))
        lines.append(f"{method.name:14}{times}  {method.argument or '(the default)'}")
    return lines


def advice(seconds: Mapping[ExchangeMethod, float], compute: float) -> str:
    """One sentence: which method to take.

    Args:
        seconds: the seconds of a step with each of `ALL_METHODS`.
        compute: the seconds of a step without communication.
    """
    chosen = choose(AUTO_METHODS, seconds.__getitem__)
    fastest = min(seconds, key=seconds.__getitem__)
    plain, alone = format_seconds(seconds[NONE]), f"{format_seconds(compute)} without communication"
    if chosen is NONE:
        gain = f"neither bf16 nor int8 makes it {LEAST_GAIN:.0%} and 1 ms shorter"
        said = f"Use no compression: a step takes {plain}, and {alone}; {gain}"
    else:
        with_it = f"{format_seconds(seconds[chosen])} with {chosen.name}"
        said = f"Use {chosen.argument}: a step takes {plain} without compression, {with_it}, and {alone}"
    if _pays(seconds[fastest], seconds[chosen]):
        said += (
            f"; {fastest.argument} needs only {format_seconds(seconds[fastest])}, but it changes the training more: "
            "compare the loss of a short run with and without it"
        )
    return said + "."
