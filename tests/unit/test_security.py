"""Shared memory is this user's alone: its mode and names, and what an address from another rank may make a process open."""

import os
import re
import secrets
import struct
from pathlib import Path
from random import Random

import pytest
from support.seeds import seeds
from support.thread_ranks import engines

from hvdlite.errors import HorovodInternalError, SystemFailure

SIZE = 4096
NOBODY = 65534
SHM = Path("/dev/shm")

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root, to be another user for a moment")


class Address:
    """What one rank tells another of its part of an arena, field by field (ArenaDraft::Address)."""

    LAYOUT = struct.Struct("=qQQQQ128s")

    def __init__(self, raw: bytes) -> None:
        self.rest = raw[self.LAYOUT.size :]
        self.id, self.bytes, self.exists, self.device, self.inode, path = self.LAYOUT.unpack_from(raw)
        self.path = path.split(b"\0")[0].decode("latin-1")

    def pack(self) -> bytes:
        fields = (self.id, self.bytes, self.exists, self.device, self.inode, self.path.encode("latin-1"))
        return self.LAYOUT.pack(*fields) + self.rest

    def names(self, path: Path) -> "Address":
        """This address, but of that file."""
        info = path.stat()
        self.path, self.device, self.inode = str(path), info.st_dev, info.st_ino
        return self


@pytest.fixture
def pair():
    with engines(2) as ranks:
        yield ranks


@pytest.fixture
def file():
    """A file beside those of hvdlite, which a test may do anything to."""
    path = SHM / f"hvdlite-arena-{secrets.token_hex(16)}"
    path.write_bytes(bytes(SIZE))
    path.chmod(0o600)
    yield path
    path.unlink()


def parts(ranks, kind):
    arenas = [rank.engine.create_arena(0, SIZE, kind) for rank in ranks]
    return arenas, [Address(arena.address) for arena in arenas]


def open_first(arenas, addresses):
    """Rank 0 opens what these addresses name."""
    arenas[0].open([address.pack() for address in addresses])


def another_user_can_open(path: str) -> bool:
    """Tries it in a child that is nobody."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.open(path, os.O_RDONLY)
        except PermissionError:
            os._exit(1)
        except OSError:
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 1


@pytest.mark.parametrize("kind", ["memfd", "shm"])
def test_nobody_else_can_open_shared_memory(pair, kind):
    umask = os.umask(0)
    try:
        arenas, addresses = parts(pair, kind)
    finally:
        os.umask(umask)
    for address in addresses:
        info = os.stat(address.path)
        assert info.st_mode & 0o7777 == 0o600
        assert info.st_uid == os.geteuid()
        if os.geteuid() == 0:
            assert not another_user_can_open(address.path)
    open_first(arenas, addresses)


def test_names_in_dev_shm_cannot_be_guessed(pair):
    arenas, addresses = parts(pair, "shm")
    names = [re.fullmatch(r"/dev/shm/hvdlite-arena-([0-9a-f]{32})", address.path) for address in addresses]
    assert all(names)
    assert len({name.group(1) for name in names if name}) == len(addresses)
    for arena in arenas:
        arena.hide()
    assert not any(os.path.exists(address.path) for address in addresses)


def test_a_file_is_opened_only_with_its_mode(pair, file):
    arenas, addresses = parts(pair, "shm")
    open_first(arenas, [addresses[0], addresses[1].names(file)])
    arenas[0].close()
    file.chmod(0o644)
    with pytest.raises(SystemFailure, match="not memory that only this user may open"):
        open_first(arenas, [addresses[0], addresses[1].names(file)])


@as_root
def test_the_file_of_another_user_is_not_opened(pair, file):
    arenas, addresses = parts(pair, "shm")
    os.chown(file, NOBODY, NOBODY)
    with pytest.raises(SystemFailure, match=f"belongs to user {NOBODY}"):
        open_first(arenas, [addresses[0], addresses[1].names(file)])


def test_a_link_in_dev_shm_is_not_followed(pair, file):
    arenas, addresses = parts(pair, "shm")
    link = SHM / f"hvdlite-arena-{secrets.token_hex(16)}"
    link.symlink_to(file)
    try:
        with pytest.raises(SystemFailure, match="opening"):
            open_first(arenas, [addresses[0], addresses[1].names(link)])
    finally:
        link.unlink()


@pytest.mark.parametrize(
    "path",
    [
        "/etc/hostname",
        "/dev/shm/mine",
        "/dev/shm/hvdlite-a/../../../etc/hostname",
        "/proc/self/mem",
        "/proc/1/fd/1/x",
        "",
        "x" * 128,
    ],
)
def test_an_address_names_nothing_else(pair, path):
    arenas, addresses = parts(pair, "memfd")
    addresses[1].path = path
    with pytest.raises(HorovodInternalError, match="that hvdlite does not make"):
        open_first(arenas, addresses)


def test_an_address_has_to_exist(pair):
    arenas, addresses = parts(pair, "memfd")
    for exists in (0, 2, 256):
        addresses[1].exists = exists
        with pytest.raises(HorovodInternalError, match="that hvdlite does not make"):
            open_first(arenas, addresses)


@pytest.mark.parametrize("seed", seeds(range(20)))
def test_addresses_with_changed_bytes_open_nothing(pair, seed):
    """Seeded: some bytes of a valid address are others."""
    random = Random(seed)
    arenas, addresses = parts(pair, "memfd")
    whole = addresses[1].pack()
    for _ in range(50):
        changed = bytearray(whole)
        for _ in range(random.randint(1, 8)):
            changed[random.randrange(8, Address.LAYOUT.size)] = random.randrange(256)
        try:
            arenas[0].open([addresses[0].pack(), bytes(changed)])
        except (HorovodInternalError, SystemFailure, ValueError):
            continue
        same = Address(bytes(changed))
        assert (same.device, same.inode) == (addresses[1].device, addresses[1].inode)
        assert os.path.samefile(same.path, addresses[1].path)  # a thread of this process has it under another number
        arenas[0].close()
