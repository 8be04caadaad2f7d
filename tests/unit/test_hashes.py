"""The hashes by which ranks compare requests: equal where the contents are, well mixed where they differ."""

import itertools
import random
import statistics
import struct

import pytest
from support.testing import native

from hvdlite import _engine
from hvdlite.errors import InvalidArgumentError, install
from hvdlite.requests import Request

install(_engine.set_error_classes)

PLAIN = Request(0, "allreduce.layer.weight", 10, (64, 3, 7), prescale=0.5, group="bucket", group_size=4, group_index=1)

# One change for every field that ranks must agree on, also to a neighbouring value.
CHANGES = [
    {"kind": 4},
    {"dtype": 11},
    {"op": 0},
    {"root": 1},
    {"root": -1},
    {"device": 0},
    {"layout": 2},
    {"prescale": 0.5000000000000001},
    {"postscale": -1.0},
    {"group": "bucket2"},
    {"group": "Bucket"},
    {"group_size": 5},
    {"group_index": 2},
    {"group_size": 1, "group_index": 4},  # the two swapped
    {"shape": (64, 7, 3)},
    {"shape": (64, 3, 7, 1)},
    {"shape": (64, 21)},
    {"shape": ()},
    {"splits": (64,)},
    {"shape": (64, 3), "splits": (7,)},  # the same numbers in another list
]


def random_request(rng: random.Random) -> Request:
    return Request(
        kind=rng.randrange(6),
        name="".join(rng.choices("ab.", k=rng.randrange(1, 20))),
        dtype=rng.randrange(13),
        shape=tuple(rng.randrange(3) for _ in range(rng.randrange(4))),
        input_ptr=rng.randrange(1 << 40),
        output_ptr=rng.randrange(1 << 40),
        op=rng.choice((0, 1, 3, 4, 5)),
        root=rng.randrange(2),
        process_set=rng.randrange(2),
        prescale=rng.choice((1.0, 0.5)),
        postscale=rng.choice((1.0, 0.5)),
        group="g" * rng.randrange(1, 10),
        group_size=rng.randrange(3),
        group_index=rng.randrange(2),
        splits=tuple(rng.randrange(3) for _ in range(rng.randrange(3))),
        device=rng.randrange(-1, 1),
        layout=rng.randrange(2),
        flags=rng.randrange(2),
    )


def test_hashes_are_equal_exactly_where_the_contents_are():
    rng = random.Random(1)
    by_name: dict[int, tuple] = {}
    by_content: dict[int, tuple] = {}
    hashes: dict[tuple, int] = {}
    for _ in range(30_000):
        request = random_request(rng)
        name_hash, content_hash = native.request_hashes(request)
        name = (request.process_set, request.name)
        content = request._replace(name="", input_ptr=0, output_ptr=0, process_set=0, flags=0)
        assert by_name.setdefault(name_hash, name) == name
        assert by_content.setdefault(content_hash, content) == content
        assert hashes.setdefault(name, name_hash) == name_hash
        assert hashes.setdefault(content, content_hash) == content_hash
    assert min(len(by_name), len(by_content)) > 10_000


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_every_field_to_agree_on_counts(change):
    assert native.request_hashes(PLAIN._replace(**change))[1] != native.request_hashes(PLAIN)[1]


def test_what_ranks_need_not_agree_on_does_not_count():
    rest = {"input_ptr": 64, "output_ptr": 128, "flags": 1}
    assert native.request_hashes(PLAIN._replace(**rest)) == native.request_hashes(PLAIN)
    moved = native.request_hashes(PLAIN._replace(name="x", process_set=3))
    assert moved[1] == native.request_hashes(PLAIN)[1]


def test_the_name_hash_is_that_of_set_and_name():
    names = ["w" * length for length in range(1, 40)] + ["v" + "w" * length for length in range(40)]
    seen = {native.request_hashes(PLAIN._replace(name=name, process_set=number))[0] for name in names for number in range(3)}
    assert len(seen) == 3 * len(names)


def flips_of_double(bit: int) -> float:
    (bits,) = struct.unpack("<Q", struct.pack("<d", 0.5))
    return struct.unpack("<d", struct.pack("<Q", bits ^ (1 << bit)))[0]


@pytest.mark.parametrize(
    ("which", "changed"),
    [
        (1, lambda bit: PLAIN._replace(shape=(64, 3 ^ (1 << bit), 7))),
        (1, lambda bit: PLAIN._replace(prescale=flips_of_double(bit))),
        (1, lambda bit: PLAIN._replace(root=1 << (bit % 31))),
        (0, lambda bit: PLAIN._replace(name=f"layer{bit}.weight")),
        (0, lambda bit: PLAIN._replace(process_set=1 << (bit % 31))),
    ],
    ids=["extent", "factor", "root", "name", "set"],
)
def test_a_changed_bit_changes_half_of_the_hash(which, changed):
    """Avalanche: of 64 bits about 32 flip, whichever bit of the content did, and each as often as the others."""
    variants = [native.request_hashes(changed(bit))[which] for bit in range(62)]
    pairs = [first ^ second for first, second in itertools.pairwise(variants) if first != second]
    flips = [difference.bit_count() for difference in pairs]
    assert statistics.mean(flips) == pytest.approx(32, abs=2.5)  # the deviation of a mean of 60 is 0.5
    assert min(flips) > 10
    each = [sum(difference >> bit & 1 for difference in pairs) / len(pairs) for bit in range(64)]
    assert min(each) > 0.2
    assert max(each) < 0.8


def test_a_bad_request_has_no_hashes():
    with pytest.raises(InvalidArgumentError, match="unknown dtype"):
        native.request_hashes(PLAIN._replace(dtype=99))
    with pytest.raises(TypeError, match="lacks its argument 'shape'"):
        native.request_hashes((0, "a", 1))
