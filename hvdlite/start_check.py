"""Checks that the ranks train the same model: an optimizer's ranks compare their parameters once, soon after the first update.

If a program forgets to broadcast the parameters, each rank trains another model, with averages of gradients that belong to no
model, and no error shows this mistake. So the ranks compare digests of their parameters, and of the optimizer's state if all
ranks have state of the same kind. They also compare the gradients of the first reductions: if the bits are equal, all ranks
probably read the same data.

**The exchange.** All ranks of an optimizer take part in its first reductions. With each reduction they make one small allreduce
(Sum) of an array with one row for each rank: a rank fills in its own row and has zeros in the other rows. A rank that has
joined has only zeros. All ranks get all rows, so all make the same decisions: no decision depends on what only one rank knows.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hvdlite.config import format_ranks, who_has
from hvdlite.errors import InvalidArgumentError, MismatchError
from hvdlite.leaves import Leaf, RankRows, digest_of, digest_of_text, index_of, signed
from hvdlite.ops import allreduce, allreduce_
from hvdlite.process_sets import ProcessSet
from hvdlite.requests import Max, Min, Sum
from hvdlite.runtime import RUNTIME

Rows = npt.NDArray[np.int64]

_MODES = ("error", "broadcast", "warn", "off")
_WATCHED = 3  # a warning needs equal gradients in this many reductions
_SAMPLE = 4096  # the digest covers this many bytes of each gradient
_ROUNDING = 64  # differences up to this many units in the last place of a tensor's largest number count as rounding

_PRESENT, _UPDATED, _PARAMETERS, _LAYOUT, _STATE, _GRADIENTS, _COLUMNS = range(7)


def mode_of(argument: str | None, function: str) -> str:
    """The mode of the check: the argument, or the knob start_check if the argument is None.

    Raises:
        InvalidArgumentError: the argument is not a mode.
    """
    if argument is not None and argument not in _MODES:
        raise InvalidArgumentError(f"{function}(start_check={argument!r}): it is None or one of {', '.join(map(repr, _MODES))}")
    config = RUNTIME.config
    mode = argument or config.start_check
    if mode != "auto":
        return mode
    return "warn" if config.horovod_rules else "error"


class Trained(Protocol):
    """The values that an optimizer trains. Each door implements this interface.

    Attributes:
        remedy: the line of code that gives all ranks the same start, for error texts.
        data_remedy: a sentence that says how to give ranks different data.
        evidence: the name of the values that `StartCheck.see` compares, for texts.
        moment: the time of the comparison, in words.
        shares_state: is it an error if, at that time, some ranks have a state of the optimizer and others have none?
    """

    remedy: str
    data_remedy: str
    evidence: str
    moment: str
    shares_state: bool

    def parameters(self) -> Iterable[Leaf]:
        """The parameters, the same ones in the same order on all ranks."""

    def state(self) -> Iterable[Leaf]:
        """The optimizer's state for these parameters. Ranks may have different kinds of it."""

    def broadcast(self, root_rank: int) -> None:
        """Gives all ranks the root's parameters and state. Collective over the process set."""


class StartCheck:
    """The comparison between the ranks of one optimizer: one round with each of the first reductions.

    Attributes:
        updated: may this rank compare its parameters? Usually: has its optimizer taken a step?
    """

    def __init__(self, mode: str, label: str, name: str, process_set: ProcessSet, trained: Trained) -> None:
        """`label` is the optimizer's name in texts. `name` is the unique name of the exchange, the same on all ranks."""
        self._open = mode != "off"
        self.updated = False
        self._mode = mode
        self._label = f"{label} in process set {process_set.process_set_id}"
        self._name = f"{name}.start_check"
        self._process_set = process_set
        self._trained = trained
        self._exchange = RankRows(self._name, process_set)
        self._rounds = 0
        self._somebody_updated = False
        self._compared = False
        self._all_alike = True  # did all ranks have equal gradients in all rounds so far?
        self._gradients = 0  # the sum of their digests, in this round

    @property
    def pending(self) -> bool:
        """Is another round needed? Equal on all ranks. False after a spare has become a rank (`Runtime.joins`)."""
        return self._open and not RUNTIME.joins

    @property
    def name(self) -> str:
        """The name of this round's sum."""
        return f"{self._name}{self._rounds}"

    @property
    def watching(self) -> bool:
        """Must the door pass the gradients of this round to `see`?"""
        return self._all_alike and self._rounds < _WATCHED

    def see(self, gradients: Iterable[Leaf]) -> None:
        """Adds the digests of gradients of this rank, in any order, before their reduction.

        The door leaves out gradients that are all zeros, because these may be equal on ranks with different data, too.
        """
        for leaf in gradients:
            self._gradients = (self._gradients + leaf.digest(slice(_SAMPLE))) % (1 << 64)

    def begin(self) -> Rows:
        """This rank's array for the allreduce of the round. Call it after `see`."""
        rows: Rows = self._exchange.new(_COLUMNS)
        mine = rows[self._exchange.place]
        mine[_PRESENT] = 1
        mine[_UPDATED] = self.updated
        if not self._compared and (self.updated or self._somebody_updated):
            state = list(self._trained.state())
            mine[_PARAMETERS] = signed(digest_of(leaf.digest() for leaf in self._trained.parameters()))
            layout = "\n".join(f"{leaf.name} {list(leaf.shape)}" for leaf in state)
            mine[_LAYOUT] = signed(digest_of_text(layout)) if state else 0
            mine[_STATE] = signed(digest_of(leaf.digest() for leaf in state))
        if self._gradients:
            mine[_GRADIENTS] = signed(self._gradients)
        self._gradients = 0
        return rows

    def end(self, rows: Rows) -> None:
        """Evaluates the round's result. If the ranks differ, the call is collective over the ranks that have not joined.

        Raises:
            MismatchError: the ranks differ, and the mode is error.
        """
        watched = self.watching
        self._rounds += 1
        present = [place for place in range(len(rows)) if rows[place, _PRESENT]]
        found = rows[present]
        if watched:
            self._look_at_gradients(found[:, _GRADIENTS])
        hashed = bool(found[:, _PARAMETERS].all())
        self._somebody_updated = self._somebody_updated or bool(found[:, _UPDATED].any())
        if hashed and not self._compared:
            self._compared = True
            self._open = self.watching  # even if the next line raises
            self._compare(found, present)
        self._open = self.watching or not self._compared

    def round(self) -> None:
        """Makes a whole round: `begin`, the allreduce and `end`. Collective over the process set.

        Raises:
            MismatchError: as `end`.
        """
        self.end(allreduce_(self.begin(), name=self.name, op=Sum, process_set=self._process_set))

    def begin_anew(self) -> None:
        """Begins again with the first round on all ranks, because a new rank has not compared its parameters."""
        self._open, self._compared, self._somebody_updated = True, False, False
        self._rounds, self._all_alike, self._gradients = 0, True, 0

    def _look_at_gradients(self, digests: Rows) -> None:
        self._all_alike = len(digests) > 1 and bool(digests[0]) and bool((digests == digests[0]).all())
        if self._all_alike and self._rounds == _WATCHED and self._exchange.place == 0:
            self._warn(
                f"every rank computed the same {self._trained.evidence} in each of the first {_WATCHED} steps: do they all "
                f"read the same data? {self._trained.data_remedy}"
            )

    def _compare(self, found: Rows, present: list[int]) -> None:
        if len(set(found[:, _PARAMETERS])) > 1:
            self._differ("parameter", self._trained.parameters, present)
        elif found[0, _LAYOUT] and len(set(found[:, _LAYOUT])) == 1 and len(set(found[:, _STATE])) > 1:
            self._differ("state of the optimizer", self._trained.state, present)
        elif self._trained.shares_state and found[:, _LAYOUT].any() and not found[:, _LAYOUT].all():
            ranks = [self._exchange.ranks[place] for place in present]
            having = [rank for rank, layout in zip(ranks, found[:, _LAYOUT], strict=True) if layout]
            lacking = [rank for rank in ranks if rank not in having]
            self._report(f"the optimizer has a state on {format_ranks(having)}, but none on {format_ranks(lacking)}", ranks[0])

    def _differ(self, what: str, leaves_of: Callable[[], Iterable[Leaf]], present: list[int]) -> None:
        leaves = list(leaves_of())
        digests = self._exchange.gather([signed(leaf.digest()) for leaf in leaves], "differs")[present]
        places = [place for place in range(len(leaves)) if len(set(digests[:, place])) > 1]
        for place in places:
            if text := self._beyond_rounding(leaves[place], present):
                more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
                self._report(f"the {what} {leaves[place].name!r}{more} differs: {text}", self._exchange.ranks[present[0]])
                return
        if self._exchange.place == present[0]:
            self._warn(
                f"{self._trained.moment}, the ranks differ within rounding, as processors of two kinds make it, in "
                f"{len(places)} of {len(leaves)} tensors (the {what} {leaves[places[0]].name!r} is the first); they may part "
                "in time"
            )

    def _beyond_rounding(self, leaf: Leaf, present: list[int]) -> str:
        """A text about the element that differs most; empty if all differences are within rounding."""
        numbers = leaf.numbers(slice(None))
        low, high = (
            allreduce(numbers, op=op, name=f"{self._name}.{name}", process_set=self._process_set)
            for op, name in ((Min, "low"), (Max, "high"))
        )
        with np.errstate(invalid="ignore", over="ignore"):
            spread = np.where(low == high, 0.0, high - low)
        sizes = np.fmax(np.abs(low), np.abs(high))
        scale = sizes.max(initial=0.0, where=np.isfinite(sizes))
        if spread.max(initial=0.0) <= _ROUNDING * leaf.epsilon * scale:
            return ""
        place = int(np.nan_to_num(spread, nan=np.inf).argmax())
        values = self._exchange.gather([numbers[place]], "values", np.float64)[present, 0]
        ranks = [self._exchange.ranks[place] for place in present]
        held = who_has(zip(ranks, [f"{value:.9g}" for value in values.tolist()], strict=True))
        element = index_of(place, leaf.shape) if len(numbers) == leaf.size else place
        return f"element {element} is {held}" if leaf.shape else f"it is {held}"

    def _report(self, difference: str, root_rank: int) -> None:
        text = f"the ranks do not train one model: {self._trained.moment}, {difference}. "
        if self._mode == "error":
            raise MismatchError(
                f"{self._label}: {text}{self._trained.remedy}. If the ranks are meant to differ, say start_check='off', or set "
                "HVDLITE_START_CHECK=off"
            )
        if self._mode == "broadcast":
            self._trained.broadcast(root_rank)
            text += f"Now all ranks have the parameters and the state of rank {root_rank}. "
        if self._exchange.ranks[self._exchange.place] == root_rank:
            self._warn(text + self._trained.remedy)

    def _warn(self, text: str) -> None:
        logging.getLogger("hvdlite").warning(f"{self._label}: {text}")
