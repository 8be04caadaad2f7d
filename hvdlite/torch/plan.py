"""Makes the fixed fusion plan of an optimizer: every rank cuts the same parameters into the same buckets."""

from collections.abc import Mapping, Sequence

from hvdlite.errors import InvalidArgumentError
from hvdlite.requests import Average, Kind
from hvdlite.runtime import RUNTIME
from hvdlite.torch.agreement import Settings
from hvdlite.torch.buckets import cut_buckets, split_evenly
from hvdlite.torch.flights import Bucket, DenseBucket, SparseBucket
from hvdlite.torch.slots import Slot, WireForm

__all__ = ["Groups", "make_buckets"]

Groups = Sequence[Sequence[str]] | int | None  # lists of parameters' names, a number of groups, or None


def make_buckets(settings: Settings, slots: Sequence[Slot], groups: Groups, generation: int) -> list[Bucket]:
    """Cuts the parameters into buckets, each with its form on the wire.

    Frozen parameters of dtypes that cannot be reduced, such as float8, are in no bucket.

    Args:
        settings: of the optimizer.
        slots: the parameters in the order of the model; gradients are expected in the opposite order.
        groups: what the user wants to be reduced together.
        generation: number of the plan; the buckets' labels differ from those of earlier plans.

    Raises:
        InvalidArgumentError: a parameter that trains has gradients of such a dtype.

    """
    set_id = settings.process_set.require_member(Kind.ALLREDUCE)
    buckets: list[Bucket] = []
    forms: dict[Slot, WireForm] = {}
    for slot in reversed(slots):
        if slot.sparse_dim is not None and not settings.sparse_as_dense:
            ranks = (settings.process_set.size() or 1) if settings.op == Average else 1
            buckets.append(SparseBucket(slot, ranks * settings.divisor, set_id))
        else:
            try:
                forms[slot] = WireForm(slot.param, slot.dtype, settings.compression)
            except InvalidArgumentError:
                if slot.param.requires_grad:
                    raise
    prescale, postscale = 1.0 / settings.predivide, settings.predivide / settings.divisor
    for number, members in enumerate(_cut(forms, groups)):
        label = f"{settings.prefix}.plan{generation}.bucket{number}"
        pairs = [(slot, forms[slot]) for slot in members]
        buckets.append(DenseBucket(label, pairs, settings.op, set_id, prescale, postscale))
    return buckets


def _cut(forms: Mapping[Slot, WireForm], groups: Groups) -> list[list[Slot]]:
    config = RUNTIME.config
    slots = list(forms)
    # Frozen parameters, which have no gradients, must not hold up the others. A bucket is reduced on one device.
    kinds = {slot: (form.dtype, form.device, form.flags, slot.param.requires_grad) for slot, form in forms.items()}
    if isinstance(groups, int):
        runs = split_evenly(len(slots), groups)
        wanted = {slots[place].name: number for number, run in enumerate(runs) for place in run}
    else:
        wanted = {name: number for number, names in enumerate(groups or ()) for name in names}
    chosen: dict[tuple[object, ...], list[Slot]] = {}
    rest: list[Slot] = []
    for slot in slots:
        if slot.name in wanted:
            chosen.setdefault((wanted[slot.name], *kinds[slot]), []).append(slot)
        else:
            rest.append(slot)
    cut = cut_buckets(
        [kinds[slot] for slot in rest],
        [forms[slot].nbytes for slot in rest],
        config.bucket_bytes,
        config.first_bucket_bytes,
    )
    return [*chosen.values(), *([rest[place] for place in places] for places in cut)]
