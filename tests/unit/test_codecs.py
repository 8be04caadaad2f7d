"""Codecs through the engine: what is coded and what is not, what ranks must agree on, and what is refused by name."""

import numpy as np
import pytest
from support.codecs import INT8, KINDS, reduced
from support.thread_ranks import ABSENT, ALLREDUCE, AVERAGE, MAX, REDUCESCATTER, SUM, engines, in_threads, run_ranks

from hvdlite.compression import Codec, Compression
from hvdlite.errors import InvalidArgumentError, MismatchError, UnsupportedError
from hvdlite.requests import Flag

TWO_HOSTS = [0, 0, 1, 1]


def values(rank: int, count: int, salt: int = 0) -> np.ndarray:
    return np.random.default_rng([rank, salt]).standard_normal(count).astype(np.float32)


def of_all(ranks: int, count: int, salt: int = 0) -> list[np.ndarray]:
    return [values(rank, count, salt) for rank in range(ranks)]


def coded_bytes(rank) -> tuple[int, int]:
    counters = rank.engine.counters()
    return counters["coded_bytes_before"], counters["coded_bytes_after"]


@pytest.mark.parametrize("config", [{}, {"allreduce_algorithm": "ring"}, {"deterministic": True}], ids=str)
def test_between_hosts_only_what_hosts_send_each_other_is_coded(config):
    def body(rank):
        for count in (1, 5000):
            for kind, number in KINDS.items():
                output = rank.allreduce(f"{kind}{count}", values(rank.rank, count), op=AVERAGE, **Codec(kind, 64).fields)
                assert output.tobytes() == reduced(of_all(4, count), number, TWO_HOSTS, 64, divisor=4).tobytes()
        return coded_bytes(rank)

    with engines(4, config, TWO_HOSTS) as ranks:
        before, after = (sum(column) for column in zip(*in_threads(ranks, body), strict=True))
    # Each host sends a half of each buffer in each direction: of 5001 elements in three codecs.
    assert before == 3 * 2 * 2 * 4 * 5001 // 2
    assert before / 5 < after < before / 4


def test_between_hosts_nothing_is_coded_on_one_host():
    def body(rank):
        plain = rank.allreduce("plain", values(rank.rank, 5000))
        assert rank.allreduce("coded", values(rank.rank, 5000), **Codec("int4").fields).tobytes() == plain.tobytes()
        tiny = rank.allreduce("tiny", values(rank.rank, 3), **Codec("int4").fields)
        assert tiny.tobytes() == rank.allreduce("plain tiny", values(rank.rank, 3)).tobytes()
        assert coded_bytes(rank) == (0, 0)

    run_ranks(3, body)
    with engines(3, {"shared_memory": "off"}) as ranks:
        in_threads(ranks, body)


@pytest.mark.parametrize("count", [3, 5000])
def test_between_ranks_everything_is_coded_also_on_one_host(count):
    codec = Codec("int8", 128, "ranks").fields

    def body(rank):
        output = rank.allreduce("a", values(rank.rank, count), prescale=0.5, postscale=3.0, **codec)
        wanted = reduced(of_all(3, count), INT8, None, 128, prescale=0.5, postscale=3.0)
        assert output.tobytes() == wanted.tobytes()
        assert coded_bytes(rank) > (0, 0)

    run_ranks(3, body)


def test_a_single_rank_gets_its_own_values():
    def body(rank):
        mine = values(0, 300)
        assert rank.allreduce("a", mine, **Codec("int4", 64, "ranks").fields).tobytes() == mine.tobytes()

    run_ranks(1, body)


@pytest.mark.parametrize("between", ["hosts", "ranks"])
def test_groups_joined_absent_and_weighted_ranks(between):
    """A group has the bits of its members alone, because blocks end with tensors."""
    codec = Codec("int8", 64, between).fields
    hosts = TWO_HOSTS if between == "hosts" else None
    sizes = (100, 1, 3000)

    def body(rank):
        handles, outputs = [], []
        for index, size in enumerate(sizes):
            mine, output = values(rank.rank, size, index), np.empty(size, np.float32)
            group = {"group": "g", "group_size": len(sizes), "group_index": index}
            handles.append(rank.start(ALLREDUCE, f"g{index}", mine, output, **group, **codec))
            outputs.append(output)
        for index, size in enumerate(sizes):
            handles[index].result()
            assert outputs[index].tobytes() == reduced(of_all(4, size, index), INT8, hosts, 64).tobytes()
        absent = {"flags": ABSENT} if rank.rank == 2 else {}
        output = rank.allreduce("absent", values(rank.rank, 500), **absent, **codec)
        given = [None if number == 2 else array for number, array in enumerate(of_all(4, 500))]
        assert np.array_equal(output, reduced(given, INT8, hosts, 64))
        weighted = {"flags": Flag.WEIGHTED, "weight": [2.0, 0.0, 6.0, 0.0][rank.rank], "op": AVERAGE}
        mine = values(rank.rank, 500) if weighted["weight"] else np.full(500, np.nan, np.float32)
        output = rank.allreduce("weighted", mine, **weighted, **codec)
        shares = [0.25 * values(0, 500), None, 0.75 * values(2, 500), None]
        np.testing.assert_allclose(output, reduced(shares, INT8, hosts, 64), rtol=1e-6, atol=1e-6)
        if rank.rank == 3:
            return rank.join()
        output = rank.allreduce("joined", values(rank.rank, 500), **codec)
        given = [None if number == 3 else array for number, array in enumerate(of_all(4, 500))]
        assert np.array_equal(output, reduced(given, INT8, hosts, 64))
        return rank.join()

    with engines(4, {}, TWO_HOSTS) as ranks:
        assert len(set(in_threads(ranks, body))) == 1


def test_process_sets_code_where_they_span_hosts():
    sets = [[0, 1], [0, 2], [1, 2, 3]]

    def body(rank):
        for number, members in enumerate(sets):
            process_set = rank.add_process_set(members)
            if rank.rank not in members:
                continue
            output = rank.allreduce("a", values(rank.rank, 700), process_set=process_set, **Codec("int8", 64).fields)
            mine = [values(member, 700) for member in members]
            hosts = [TWO_HOSTS[member] for member in members]
            wanted = sum(mine) if number == 0 else reduced(mine, INT8, hosts, 64)
            assert output.tobytes() == wanted.tobytes()

    with engines(4, {}, TWO_HOSTS) as ranks:
        in_threads(ranks, body)


def test_ranks_must_agree_on_the_codec():
    codecs = [Compression.int8(), Compression.int8(), Compression.int8(block=128)]
    others = [{}, Compression.fp8().fields, Compression.fp8().fields]

    def body(rank):
        with pytest.raises(MismatchError) as told:
            rank.allreduce("a", values(rank.rank, 9), **codecs[rank.rank].fields)
        text = "codec differs: int8 in blocks of 256 between hosts on ranks 0, 1, int8 in blocks of 128 between hosts on rank 2"
        assert text in str(told.value)
        with pytest.raises(MismatchError, match=r"codec differs: none on rank 0, fp8 in blocks of 256 .* on ranks 1, 2"):
            rank.allreduce("b", values(rank.rank, 9), **others[rank.rank])
        assert rank.allreduce("c", np.ones(1, np.float32)) == 3  # the engine stays usable

    run_ranks(3, body)


def test_what_cannot_be_coded_is_refused_by_name():
    fields = Compression.int4().fields

    def body(rank):
        for dtype in ("float64", "int32", "complex64", "bool"):
            op = MAX if dtype == "bool" else SUM
            text = "op is Max" if dtype == "bool" else f"{dtype} cannot travel as int4: only float32, float16 and bfloat16 can"
            with pytest.raises(UnsupportedError, match=f"allreduce of 'a'.*{text}"):
                rank.allreduce("a", np.ones(3, dtype), op=op, **fields)
        for op, name in ((2, "Adasum"), (3, "Min"), (4, "Max"), (5, "Product")):
            with pytest.raises(UnsupportedError, match=f"a codec works for sums, and op is {name}"):
                rank.allreduce("a", np.ones(3, np.float32), op=op, **fields)
        with pytest.raises(UnsupportedError, match="reducescatter has no codecs"):
            rank.start(REDUCESCATTER, "a", np.ones(3, np.float32), **fields)
        for block in (0, 63, 8192):
            with pytest.raises(InvalidArgumentError, match=f"no blocks of {block} elements: give a multiple of 64 up to 4096"):
                rank.allreduce("a", np.ones(3, np.float32), **{**fields, "codec_block": block})
        with pytest.raises(InvalidArgumentError, match="unknown codec"):
            rank.allreduce("a", np.ones(3, np.float32), codec=9)

    run_ranks(1, body)


def test_the_algorithm_for_codecs_cannot_be_forced():
    with (
        pytest.raises(
            InvalidArgumentError, match="ALLREDUCE_ALGORITHM=coded cannot be forced: coded serves reductions with a codec"
        ),
        engines(2, {"allreduce_algorithm": "coded"}),
    ):
        pass


def test_a_codec_with_a_wrong_argument_is_refused_where_it_is_made():
    with pytest.raises(InvalidArgumentError, match="block=100: pass a multiple of 64"):
        Compression.int8(block=100)
    with pytest.raises(InvalidArgumentError, match="between='racks'"):
        Compression.fp8(between="racks")
    with pytest.raises(InvalidArgumentError, match="kind='int2' is not a codec"):
        Codec("int2")
    assert {kind: Codec(kind).fields["codec"] for kind in KINDS} == KINDS
