"""Every form of every collective on a process set, for any door: its call and its expected result."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray
Arrays = list[Array]


@dataclass(frozen=True)
class Members:
    """A process set on one of its ranks, and the parameters of the test.

    Attributes:
        ranks: the members.
        place: the place of this rank among them.
        root: the root of a broadcast, as a rank of the job.
        salt: a number that selects other values.
    """

    ranks: list[int]
    place: int
    root: int
    salt: int = 0

    def rows(self, rank: int, count: int, width: int = 2) -> Array:
        """A rank's own values: whole numbers, whose sums are exact."""
        return (np.arange(count * width, dtype=np.float64).reshape(count, width) + 1) * (rank + 2) + self.salt

    def even(self, rank: int) -> Array:
        """Values of the same shape on all members: two rows for each member and one more."""
        return self.rows(rank, 2 * len(self.ranks) + 1)

    def ragged(self, rank: int) -> Array:
        """Values with more rows on later members."""
        return self.rows(rank, 1 + 2 * self.ranks.index(rank))

    def splits(self, rank: int) -> list[int]:
        """The numbers of rows that a rank sends to each member: none to the one before it. The last rows are not sent."""
        place = self.ranks.index(rank)
        return [(to - place + 1) % len(self.ranks) for to in range(len(self.ranks))]

    def alltoall_rows(self, rank: int) -> Array:
        return self.rows(rank, sum(self.splits(rank)) + 1)

    def everybody(self, make: Callable[[int], Array]) -> Arrays:
        return [make(rank) for rank in self.ranks]


# Functions that compute a rank's inputs, and the results that this rank must get, from the members.
Inputs = Callable[[Members, int], Arrays]
Wanted = Callable[[Members], Arrays]


def _reduced(members: Members) -> Arrays:
    return [sum(members.everybody(members.even))]


def _averaged(members: Members) -> Arrays:
    return [_reduced(members)[0] / len(members.ranks)]


def _gathered(members: Members) -> Arrays:
    return [np.concatenate(members.everybody(members.ragged))]


def _scattered(members: Members) -> Arrays:
    return [np.array_split(_reduced(members)[0], len(members.ranks))[members.place]]


def _received(members: Members) -> Arrays:
    parts, counts = [], []
    for rank in members.ranks:
        splits = members.splits(rank)
        start = sum(splits[: members.place])
        parts.append(members.alltoall_rows(rank)[start : start + splits[members.place]])
        counts.append(splits[members.place])
    return [np.concatenate(parts), np.array(counts, np.int32)]


def _swapped(members: Members) -> Arrays:
    return [np.concatenate([members.rows(rank, len(members.ranks))[members.place :][:1] for rank in members.ranks])]


def _even(members: Members, rank: int) -> Arrays:
    return [members.even(rank)]


def _both(one: Wanted) -> Wanted:
    """The results for two tensors, the second of which is the first times ten."""
    return lambda members: [one(members)[0], 10 * one(members)[0]]


def _pair(make: Callable[[Members, int], Array]) -> Inputs:
    return lambda members, rank: [make(members, rank), 10 * make(members, rank)]


@dataclass(frozen=True)
class Form:
    """A form to call a collective: on a door, with tensors, on a process set."""

    call: Callable[[Any, list[Any], Any, Members], Any]
    inputs: Inputs
    wanted: Wanted
    in_place: bool = False


def _forms() -> Iterator[tuple[str, Form]]:
    even_pair, ragged_pair = _pair(Members.even), _pair(Members.ragged)
    for suffix in ("", "_", "_async", "_async_"):
        name, in_place = f"allreduce{suffix}", suffix.endswith("_")
        yield name, Form(_one(name, op="Sum"), _even, _reduced, in_place)
        yield f"{name} Average", Form(_one(name), _even, _averaged, in_place)
        yield f"grouped_{name}", Form(_many(f"grouped_{name}", op="Sum"), even_pair, _both(_reduced), in_place)
        name = f"broadcast{suffix}"
        yield name, Form(_rooted(name), _even, lambda members: [members.even(members.root)], in_place)
    for suffix in ("", "_async"):
        name = f"allgather{suffix}"
        yield name, Form(_one(name), lambda members, rank: [members.ragged(rank)], _gathered)
        yield f"grouped_{name}", Form(_many(f"grouped_{name}"), ragged_pair, _both(_gathered))
        name = f"reducescatter{suffix}"
        yield name, Form(_one(name, op="Sum"), _even, _scattered)
        yield f"grouped_{name}", Form(_many(f"grouped_{name}", op="Sum"), even_pair, _both(_scattered))
        name = f"alltoall{suffix}"
        yield f"{name} splits", Form(_splitting(name), lambda members, rank: [members.alltoall_rows(rank)], _received)
    yield "alltoall", Form(_one("alltoall"), lambda members, rank: [members.rows(rank, len(members.ranks))], _swapped)


def _finished(door: Any, name: str, result: Any) -> Any:
    return door.synchronize(result) if "_async" in name else result


def _options(door: Any, op: str | None) -> dict[str, int]:
    return {} if op is None else {"op": getattr(door, op)}


def _one(name: str, op: str | None = None) -> Callable[[Any, list[Any], Any, Members], Any]:
    return lambda door, tensors, process_set, _: _finished(
        door, name, getattr(door, name)(tensors[0], process_set=process_set, **_options(door, op))
    )


def _many(name: str, op: str | None = None) -> Callable[[Any, list[Any], Any, Members], Any]:
    return lambda door, tensors, process_set, _: _finished(
        door, name, getattr(door, name)(tensors, process_set=process_set, **_options(door, op))
    )


def _rooted(name: str) -> Callable[[Any, list[Any], Any, Members], Any]:
    return lambda door, tensors, process_set, members: _finished(
        door, name, getattr(door, name)(tensors[0], members.root, process_set=process_set)
    )


def _splitting(name: str) -> Callable[[Any, list[Any], Any, Members], Any]:
    return lambda door, tensors, process_set, members: _finished(
        door,
        name,
        getattr(door, name)(tensors[0], members.splits(members.ranks[members.place]), process_set=process_set),
    )


FORMS = dict(_forms())


def check_form(
    form: Form,
    door: Any,
    process_set: Any,
    members: Members,
    tensor: Callable[[Array], Any] = np.copy,
    host: Callable[[Any], Array] = np.asarray,
) -> None:
    """Calls a form on a process set of which this rank is a member, and compares its results with the expected ones.

    Args:
        form: a value of FORMS.
        door: the module to call.
        process_set: the door's process set.
        members: the members of the set.
        tensor: a function that makes a tensor of the door from an array.
        host: a function that makes an array from a tensor.
    """
    given = [tensor(array) for array in form.inputs(members, members.ranks[members.place])]
    result = form.call(door, given, process_set, members)
    results = [host(part) for part in (result if isinstance(result, list | tuple) else [result])]
    for got, wanted in zip(results, form.wanted(members), strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-15)  # Average multiplies by a reciprocal
    untouched = form.inputs(members, members.ranks[members.place])
    for before, after, got in zip(untouched, given, results, strict=False):
        np.testing.assert_array_equal(host(after), got if form.in_place else before)


@contextmanager
def added(door: Any, *sets: list[int]) -> Iterator[list[Any]]:
    """Adds process sets of these ranks, and removes them at the end of the block."""
    registered = [door.add_process_set(ranks) for ranks in sets]
    yield registered
    for process_set in registered:
        door.remove_process_set(process_set)
