"""`check_consistency`: do all ranks hold the same values? It compares digests of all bits, once or every few training steps.

Each rank reads its values once and sends five numbers: 1 (a joined rank sends 0), the number of its training steps, whether it
failed to read its values, a digest of their names, dtypes and shapes, and a digest of their content. If the digests are equal,
the comparison ends. If the digests of the content differ, the ranks exchange one digest for each value, and then digests of
smaller and smaller parts of the first value that differs, until they know the first element that differs. So no rank ever sends
a whole value, whatever its size.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hvdlite.agreement import compare, difference, only_on
from hvdlite.checks import check_process_set
from hvdlite.config import format_ranks, who_has
from hvdlite.errors import InvalidArgumentError, MismatchError
from hvdlite.leaves import FindLeaves, Leaf, RankRows, digest_of, digest_of_text, index_of, leaves_in, signed
from hvdlite.objects import exchange_object
from hvdlite.process_sets import ProcessSet, global_process_set, root_arguments
from hvdlite.runtime import RUNTIME

__all__ = [
    "ConsistencyChecker",
    "RankComparison",
    "check_consistency",
    "check_objects",
    "leaves_of_arguments",
    "variables_to_compare",
]

_NAME = "check_consistency"
_PIECES = 1024  # a value is cut into this many parts to find the element that differs
_NAMED = 3  # a text lists this many of the values that only some ranks have

_PRESENT, _STEPS, _UNREADABLE, _LAYOUT, _CONTENT = range(5)


def check_consistency(
    *objects: Any, every: int | None = None, process_set: ProcessSet = global_process_set
) -> "ConsistencyChecker | None":
    """Checks that all ranks hold the same values, bit by bit. Collective over `process_set`.

    NaNs and infinities are compared by their bits, too. The check changes no object, and copies only arrays whose elements are
    not in row-major order in memory.

    Args:
        objects: the values to compare: arrays of any dtype, numbers, texts, and dicts, lists and tuples of these, nested to
            any depth; None is left out. The other doors (`hvdlite.torch`, `hvdlite.tensorflow`, `hvdlite.keras`,
            `hvdlite.jax`) have a `check_consistency` that also takes the objects that their frameworks train.
        every: None compares now. A number of training steps makes a checker: call its ``step()`` after each training step.
        process_set: the ranks to compare. The call does nothing on a rank that is not a member.

    Returns:
        None; or, with `every`, the `ConsistencyChecker`.

    Raises:
        MismatchError: (on all ranks, with the same text) values differ; or the names, number, dtypes or shapes of the values
            differ; or the ranks passed different `every`. The text says which ranks differ and in how many values. For the
            first such value it gives the name, dtype and shape, and the first element that differs, as each rank has it.
        InvalidArgumentError: an argument is wrong; or another rank cannot read its objects (with `every`: MismatchError). The
            rank that cannot read its objects raises the exception that reading raised.
        NotInitializedError: `init` has not been called.
        HorovodInternalError: a rank failed.
    """

    def remedy(among: ProcessSet) -> str:
        return f"hvd.broadcast(array, {root_arguments(among)}) gives all ranks the values of one"

    return check_objects(
        objects, every, RankComparison(lambda given: leaves_of_arguments(given, lambda *_: None), process_set, remedy)
    )


def check_objects(objects: Sequence[Any], every: int | None, comparison: "RankComparison") -> "ConsistencyChecker | None":
    """`check_consistency` of any door: compares now, or makes a checker. Collective over the comparison's process set.

    Raises:
        InvalidArgumentError: `every` is wrong; or there is nothing to compare.
        MismatchError, HorovodInternalError: as for `check_consistency`.
    """
    if every is not None:
        return ConsistencyChecker(objects, every, comparison)
    if not objects:
        raise InvalidArgumentError("check_consistency() has nothing to compare: pass a model, an optimizer, arrays, ...")
    comparison.run(objects)
    return None


class RankComparison:
    """The comparison of values on the ranks of a process set.

    Args:
        leaves: a function that returns the leaves of objects (`hvdlite.leaves.Leaf`: single tensors), each with the name of the
            argument to which the leaf belongs.
        process_set: the ranks that take part.
        remedy: a function that gets the process set and returns a sentence for error texts, without a full stop: how to make
            values equal again.
        named: do values have the same names on all ranks? Otherwise values are paired by their order, and error texts use the
            names of the first rank.
    """

    def __init__(
        self,
        leaves: Callable[[Sequence[Any]], Iterable[tuple[str, Leaf]]],
        process_set: ProcessSet,
        remedy: Callable[[ProcessSet], str],
        named: bool = True,
    ) -> None:
        RUNTIME.require_topology()
        check_process_set(process_set)
        self._leaves = leaves
        self._process_set = process_set
        self._remedy = remedy
        self._named = named
        self._label = f"{_NAME} in process set {process_set.process_set_id}"
        self.takes_part = bool(process_set.included())

    def begin(self, objects: Sequence[Any], every: int) -> None:
        """Checks that all ranks have passed the same `every`, and can read their objects. Collective over the process set.

        Raises:
            MismatchError: `every` differs between ranks, or another rank cannot read its objects.
            Exception: this rank cannot read its objects; the exception is the one that reading raised.
        """
        _, problem = self._listed(objects)
        readable = "possible" if problem is None else f"impossible: {problem}"
        facts = [("every", every), ("reading the objects", readable)]
        _, differing = compare(facts, f"{_NAME}.every", self._process_set)
        if problem is not None:
            raise problem
        if differing:
            raise MismatchError(f"{self._label}: {differing}; call it with the same arguments on all ranks")

    def run(self, objects: Sequence[Any], steps: int = 0, moment: str = "") -> None:
        """Compares. Collective over the process set.

        Args:
            objects: the objects of this rank.
            steps: the number of training steps so far, the same on all ranks.
            moment: a text for errors that names the training step, the same on all ranks.

        Raises:
            MismatchError, InvalidArgumentError: as `check_consistency`.
        """
        if not self.takes_part:
            return
        listed, problem = self._listed(objects)
        digests: list[int] = []
        if problem is None and self._process_set.size() != 1:  # now: an elastic job may have other ranks than before
            try:
                digests = [signed(leaf.digest()) for _, leaf in listed]
            except Exception as error:  # of the framework, such as a lack of memory; the other ranks wait for this one
                problem = error
        where = f"{self._label}{moment}"
        exchange = RankRows(_NAME, self._process_set)
        layout = signed(digest_of_text("\n".join(self._described(*each) for each in listed)))
        mine = [1, steps, problem is not None, layout, signed(digest_of(each % (1 << 64) for each in digests))]
        found = exchange.gather(mine, "round")
        present = [place for place in range(len(found)) if found[place, _PRESENT]]
        found, ranks = found[present], [exchange.ranks[place] for place in present]
        if found[:, _UNREADABLE].any():
            self._raise_unreadable(ranks, problem)
        if len(set(found[:, _STEPS])) > 1:
            steps_of = {rank: [("this step", int(row[_STEPS]))] for rank, row in zip(ranks, found, strict=True)}
            self._refuse(self._label, difference(steps_of), "make the same steps")
        if len(set(found[:, _LAYOUT])) > 1:
            self._refuse(where, self._different_layouts(listed, ranks), "pass the same objects on all ranks, built alike")
        if len(set(found[:, _CONTENT])) > 1:
            remedy = self._remedy(self._process_set)
            raise MismatchError(f"{where}: {self._differing(listed, digests, exchange, present)}. {_CAUSES}; {remedy}")

    def _listed(self, objects: Sequence[Any]) -> tuple[list[tuple[str, Leaf]], Exception | None]:
        """The leaves of the objects; or an empty list and the exception that prevented reading them."""
        try:
            return list(self._leaves(objects)), None
        except Exception as error:  # of the framework
            return [], error

    def _described(self, owner: str, leaf: Leaf) -> str:
        what = f"{leaf.dtype} {list(leaf.shape)}"
        return f"{_name(owner, leaf)}: {what}" if self._named else what

    def _refuse(self, where: str, differing: str, remedy: str) -> None:
        raise MismatchError(f"{where}: the ranks differ in what they compare: {differing}; {remedy}")

    def _raise_unreadable(self, ranks: Sequence[int], problem: Exception | None) -> None:
        texts = exchange_object(problem and f"{type(problem).__name__}: {problem}", f"{_NAME}.unreadable", self._process_set)
        if problem is not None:
            raise problem
        failed = [f"rank {rank} cannot read its values: {text}" for rank, text in zip(ranks, texts, strict=True) if text]
        raise InvalidArgumentError(f"{self._label}: {'; '.join(failed)}")

    def _different_layouts(self, listed: Sequence[tuple[str, Leaf]], ranks: Sequence[int]) -> str:
        mine = [(_name(*each), f"{each[1].dtype} {list(each[1].shape)}") for each in listed]
        everyone = exchange_object(mine, f"{_NAME}.layout", self._process_set)
        if not self._named:
            longest = max(everyone, key=len)
            everyone = [[(name, what) for (name, _), (_, what) in zip(longest, own, strict=False)] for own in everyone]
        missing = only_on([[name for name, _ in own] for own in everyone], ranks, most=_NAMED)
        return missing or difference(dict(zip(ranks, everyone, strict=True)))

    def _differing(
        self, listed: Sequence[tuple[str, Leaf]], digests: Sequence[int], exchange: RankRows, present: Sequence[int]
    ) -> str:
        """Which ranks differ, in how many values, and in which element of the first of them, in words."""
        rows = [tuple(row) for row in exchange.gather(digests, "digests")[present].tolist()]
        ranks = [exchange.ranks[place] for place in present]
        usual = Counter(rows).most_common(1)[0][0]  # of the lowest ranks, if several are as common
        counts: dict[int, list[int]] = {}
        for rank, row in zip(ranks, rows, strict=True):
            counts.setdefault(sum(one != other for one, other in zip(row, usual, strict=True)), []).append(rank)
        agreeing = counts.pop(0)
        deviating = ", and ".join(
            f"{format_ranks(those)} {'differs' if len(those) == 1 else 'differ'} in {count}" for count, those in counts.items()
        )
        first = next(place for place in range(len(digests)) if len({row[place] for row in rows}) > 1)
        owner, leaf = listed[first]
        place = _first_element(leaf, exchange, present)
        described = exchange_object((_name(owner, leaf), *_element(leaf, place)), f"{_NAME}.element", self._process_set)
        texts = [text for _, text, _ in described]
        exact = len(set(texts)) == len({bits for _, _, bits in described})  # do different bits always have different texts?
        values = [text if exact else f"{text} (bits {bits})".lstrip() for _, text, bits in described]
        held = who_has(zip(ranks, values, strict=True))
        index = f"its first element that differs, {index_of(place, leaf.shape)}, is" if leaf.shape else "it is"
        return (
            f"{deviating} of {len(listed)} values from {format_ranks(agreeing)}. The first is {described[0][0]!r}, "
            f"{leaf.dtype} {list(leaf.shape)}: {index} {held}"
        )


class ConsistencyChecker:
    """Compares the ranks after each `every` training steps. `check_consistency` makes the checker, on all ranks.

    Attributes:
        every: the number of training steps between two comparisons.
        steps: the number of training steps so far, as `step` or `advance_to` has counted them.
    """

    def __init__(self, objects: Sequence[Any], every: int, comparison: RankComparison) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidArgumentError(f"check_consistency(every={every!r}): it is a whole number of steps above 0, or None")
        self.every = every
        self.steps = 0
        self._objects: Sequence[Any] | None = objects or None
        self._comparison = comparison
        self._equal_after: int | None = None
        self._release: Callable[[], None] = lambda: None
        self._closed = not comparison.takes_part
        if comparison.takes_part:
            comparison.begin(objects, every)

    def step(self, *objects: Any) -> None:
        """Counts a training step. After each `every` training steps the call compares the ranks, and is then collective.

        Args:
            objects: the objects to compare, instead of those that `check_consistency` got; for programs whose training steps
                make new objects, such as programs of JAX.

        Raises:
            InvalidArgumentError: there is nothing to compare.
            MismatchError, HorovodInternalError: as for `check_consistency`. The text names the training step, and the last one
                after which all ranks were equal.
        """
        self.advance_to(self.steps + 1, *objects)

    def advance_to(self, steps: int, *objects: Any) -> None:
        """Does what `step` does, after one or more training steps: `steps` is their number since the beginning."""
        is_due = steps // self.every > self.steps // self.every
        self.steps = steps
        if self._closed or not is_due:
            return
        given = objects or self._objects
        if given is None:
            raise InvalidArgumentError("there is nothing to compare: pass objects to check_consistency() or to step()")
        before = "" if self._equal_after is None else f" (all ranks were equal after step {self._equal_after})"
        self._comparison.run(given, steps, f", after step {steps}{before}")
        self._equal_after = steps

    def follow(self, release: Callable[[], None]) -> None:
        """Notes that a door calls `step` from a hook. `release` removes the hook; `close` calls `release`."""
        self._release = release

    def close(self) -> None:
        """Ends the comparisons; call it on all ranks after the same step. Removes the hook that calls `step`, if any."""
        self._closed = True
        self._release()


_CAUSES = (
    "Look for what only some ranks do: a branch that depends on hvd.rank(), random numbers without a common seed, a schedule "
    "that depends on this rank's own loss, a checkpoint that some ranks have not loaded, a missing broadcast"
)


def leaves_of_arguments(objects: Sequence[Any], find: FindLeaves) -> Iterable[tuple[str, Leaf]]:
    """The leaves of a call's arguments, each with the name of its argument."""
    for number, value in enumerate(objects, 1):
        owner = f"argument {number} ({type(value).__name__})"
        for leaf in leaves_in(value, "", find):
            yield owner, leaf


def variables_to_compare(model: Any, buffers: bool) -> list[Any]:
    """The variables of a model or layer of Keras, or of a module of TensorFlow, that must be equal on all ranks.

    Args:
        model: the model, layer or module.
        buffers: include variables that gradients never change, such as the moving averages of batch normalization? Frozen
            weights are always included.
    """
    if not hasattr(model, "_flatten_layers"):
        return list(model.variables if buffers else model.trainable_variables)
    if buffers:
        return list(model.weights)
    # In Keras 3 and in Keras 2: the attribute with a layer's own trainable weights, which still has them while they are frozen.
    names = ("_trainable_variables", "_trainable_weights")
    trained = {
        id(variable) for layer in model._flatten_layers() for name in names for variable in getattr(layer, name, None) or ()
    }
    return [variable for variable in model.weights if id(variable) in trained]


def _name(owner: str, leaf: Leaf) -> str:
    return f"{leaf.name} of {owner}" if leaf.name else owner


def _first_element(leaf: Leaf, exchange: RankRows, present: Sequence[int]) -> int:
    """The place of the first element of this leaf that differs between ranks. Collective over the process set."""
    width = leaf.memory().nbytes // leaf.size
    start, stop = 0, leaf.size
    while stop - start > 1:
        length = -(-(stop - start) // _PIECES)
        pieces = [(begin, min(begin + length, stop)) for begin in range(start, stop, length)]
        digests = [signed(leaf.digest(slice(begin * width, end * width))) for begin, end in pieces]
        found = exchange.gather(digests, "pieces")[present]
        start, stop = pieces[next(place for place in range(len(pieces)) if len(set(found[:, place])) > 1)]
    return start


def _element(leaf: Leaf, place: int) -> tuple[str, str]:
    """An element as a text, which is empty if the element is not a number; and its bits."""
    memory = leaf.memory()
    width = memory.nbytes // leaf.size
    bits = "0x" + memory[place * width : (place + 1) * width][::-1].tobytes().hex()
    parts = 2 if leaf.dtype.startswith("complex") else 1
    try:
        numbers = leaf.numbers(slice(place * parts, (place + 1) * parts)).tolist()
    except (TypeError, ValueError):  # texts, dates
        return "", bits
    return " ".join(f"{number:.9g}" for number in numbers[:1]) + "".join(f"{number:+.9g}j" for number in numbers[1:]), bits
