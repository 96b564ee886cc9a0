"""Fixed bytes: a store written today is read for ever, and docs/format.md shows these examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import blake3
import msgspec
import pytest
import zstandard

from cowfs.format import audit, codec, keys, records, sessions, version
from cowfs.format.checksum import of_table

INO, PARENT, EPOCH = 12, 1, 3
T0 = 1764547200000000000
SESSION = "c0ffee00-1111-4222-8333-444455556666"
LINE = b'{"type":"user"}\n'
LINE_HASH = "de5efdf6456331bfa553154699dd1c6b4836cfbdca51891e4df9c72e3025e654"

KEYS = {
    "inode": (
        keys.inode_key(INO, EPOCH),
        "000000000000000c fffffffffffffffc",
    ),
    "dirent": (
        keys.dirent_key(PARENT, b"main.py", EPOCH),
        "0000000000000001 6d61696e2e7079 00 fffffffffffffffc",
    ),
    "link": (
        keys.link_key(INO, PARENT, b"main.py", EPOCH),
        "000000000000000c 0000000000000001 6d61696e2e7079 00 fffffffffffffffc",
    ),
    "xattr": (
        keys.xattr_key(INO, b"user.mime", EPOCH),
        "000000000000000c 757365722e6d696d65 00 fffffffffffffffc",
    ),
    "extent": (
        keys.extent_key(INO, 1, EPOCH),
        "000000000000000c 0000000000000001 fffffffffffffffc",
    ),
    "base": (keys.base_key(PARENT, b"docs"), "0000000000000001 646f6373"),
    "piece": (sessions.piece_key(1, 16), "0000000000000001 0000000000000010"),
    "hardlink": (
        keys.hardlink_key(0xFE01, 131074),
        "000000000000fe01 0000000000020002",
    ),
    "change of an inode": (
        keys.change_inode_key(EPOCH, INO),
        "0000000000000003 01 000000000000000c",
    ),
    "change of a name": (
        keys.change_dirent_key(EPOCH, PARENT, b"main.py"),
        "0000000000000003 02 0000000000000001 6d61696e2e7079",
    ),
}

FILE = records.InodeRecord(
    flags=0,
    mode=0o100644,
    nlink=1,
    uid=1000,
    gid=1000,
    rdev=0,
    size=70000,
    atime=T0 + 1,
    mtime=T0 + 123456789,
    ctime=T0 + 123456789,
    content=INO,
    base_size=0,
    target=b"",
)
LINK = records.InodeRecord(
    flags=0,
    mode=0o120777,
    nlink=1,
    uid=0,
    gid=0,
    rdev=0,
    size=11,
    atime=T0,
    mtime=T0,
    ctime=-1,
    content=13,
    base_size=0,
    target=b"docs/readme",
)
BASE = records.BaseRecord(
    ino=2,
    content=2,
    kind=8,
    mode=0o100644,
    dev=0xFE01,
    st_ino=131074,
    size=5,
    mtime=T0,
    ctime=T0 + 2,
)

INODES = {
    "a file": (
        FILE,
        "00 000081a4 00000001 000003e8 000003e8 0000000000000000 0000000000011170"
        "187cee5455690001 187cee545cc4cd15 187cee545cc4cd15 000000000000000c 0000000000000000",
    ),
    "a symbolic link": (
        LINK,
        "00 0000a1ff 00000001 00000000 00000000 0000000000000000 000000000000000b"
        "187cee5455690000 187cee5455690000 ffffffffffffffff 000000000000000d 0000000000000000"
        "646f63732f726561646d65",
    ),
}

HISTORY: dict[str, tuple[Any, str]] = {
    "epoch": (
        records.EpochRecord(
            parent=2,
            run_start=0,
            branch="main",
            opened=1000,
            sealed=2000,
            counts=records.Counts(1, 2, 0),
            checkpoint="0123456789ab",
        ),
        "97 02 00 a46d61696e cd03e8 cd07d0 93 01 02 00 ac303132333435363738396162",
    ),
    "checkpoint": (
        records.CheckpointRecord(
            id="0123456789ab",
            epoch=3,
            branch="main",
            kind="manual",
            time=2000,
            message="before the refactoring",
            label="v1",
            uid=1000,
            user="ana",
            pid=4242,
            command="cowfs checkpoint",
            target="",
            counts=records.Counts(1, 2, 0),
            git=records.GitState("a94a8fe5ccb19ba61c4c0873d391e987982fbbd3", "topic", T0, 1024),
            pinned=True,
            note="release",
        ),
        "dc0012 ac303132333435363738396162 03 a46d61696e a66d616e75616c cd07d0"
        "b66265666f726520746865207265666163746f72696e67 a27631 cd03e8 a3616e61 cd1092"
        "b0636f77667320636865636b706f696e74 a0 93 01 02 00"
        "94 d928 61393461386665356363623139626136316334633038373364333931653938373938326662626433"
        "a5746f706963 cf187cee5455690000 cd0400 c3 a772656c65617365 a0 90",
    ),
    "operation": (
        records.OperationRecord(
            seq=2000,
            time=2000,
            kind="checkpoint",
            before=3,
            after=4,
            checkpoint="0123456789ab",
            uid=1000,
            user="ana",
            pid=4242,
            command="cowfs checkpoint",
            detail="",
        ),
        "9b cd07d0 cd07d0 aa636865636b706f696e74 03 04 ac303132333435363738396162 cd03e8"
        "a3616e61 cd1092 b0636f77667320636865636b706f696e74 a0",
    ),
    "process": (
        audit.ProcessRecord(
            pid=4242,
            started=T0,
            uid=1000,
            user="ana",
            name="rm",
            command=b"rm\0-rf\0build\0",
            parent=2,
        ),
        "9a cd1092 cf187cee5455690000 cd03e8 a3616e61 a2726d c40d726d002d7266006275696c6400 02"
        "a0 a0 c2",
    ),
    "audit": (
        audit.AuditRecord(
            epoch=3,
            time=T0,
            process=3,
            directories=(b"", b"build"),
            operations=(
                audit.Operation(audit.MADE, 0, INO, 8, 0, b"main.py", count=2, size=70000),
                audit.Operation(audit.REMOVED, 1000, 13, 8, 1, b"a.o"),
            ),
        ),
        "96 03 cf187cee5455690000 03 92 c400 c4056275696c64"
        "92 9b 01 00 0c 08 00 c4076d61696e2e7079 00 c400 02 ce00011170 00"
        "9b 03 cd03e8 0d 08 01 c403612e6f 00 c400 01 00 00 a0",
    ),
    "session": (
        sessions.SessionRecord(
            id=SESSION,
            agent="claude",
            state="active",
            started=T0,
            last=T0 + 1000,
            uid=1000,
            user="ana",
            pid=4242,
            born=123456,
            boot="b00710",
            cwd=b"/srv/shop",
            transcript=b"/home/ana/s.jsonl",
            title="Tidy up",
            prompt="Remove the build directory",
            prompt_id="p1",
            version="2.1.300",
            files=(1, 2),
        ),
        "dc0016 d924 63306666656530302d313131312d343232322d383333332d343434343535353536363636"
        "a6636c61756465 a6616374697665 cf187cee5455690000 cf187cee54556903e8 00 a0 a0 a0"
        "cd03e8 a3616e61 cd1092 ce0001e240 a6623030373130 c4092f7372762f73686f70"
        "c4112f686f6d652f616e612f732e6a736f6e6c a754696479207570"
        "ba52656d6f766520746865206275696c64206469726563746f7279 a27031 a7322e312e333030 a0"
        "92 01 02",
    ),
    "transcript": (
        sessions.TranscriptRecord(
            session=SESSION,
            name="main",
            path=b"/home/ana/s.jsonl",
            kind="lines",
            length=16,
            hash=bytes.fromhex(LINE_HASH),
            tail=LINE,
        ),
        "97 d924 63306666656530302d313131312d343232322d383333332d343434343535353536363636"
        "a46d61696e c4112f686f6d652f616e612f732e6a736f6e6c a56c696e6573 10"
        "c420 de5efdf6456331bfa553154699dd1c6b4836cfbdca51891e4df9c72e3025e654"
        "c410 7b2274797065223a2275736572227d0a",
    ),
    "context": (
        sessions.ContextRecord(
            session=SESSION,
            event="prompt",
            prompt="Remove the build directory",
            prompt_id="p1",
            cwd=b"/srv/shop",
            marks=(sessions.Mark(1, 16, bytes.fromhex(LINE_HASH)),),
            environment=(("LANG", "C"),),
            hidden=("API_KEY",),
            processes=(sessions.RunningProcess(4242, 1, T0, b"claude\0", b"/srv/shop"),),
            files=(sessions.OpenFile(4242, 5, INO, b"main.py", 70000, 2),),
            ports=(sessions.ListeningPort("tcp", "127.0.0.1", 8080, 4250),),
            locks=(sessions.FileLock(4242, INO, b"main.py", "FLOCK", "WRITE", 0, -1),),
        ),
        "dc0011 d924 63306666656530302d313131312d343232322d383333332d343434343535353536363636"
        "a670726f6d7074 ba52656d6f766520746865206275696c64206469726563746f7279 a27031 93 a0 a0 a0"
        "c4092f7372762f73686f70"
        "91 93 01 10 c420 de5efdf6456331bfa553154699dd1c6b4836cfbdca51891e4df9c72e3025e654 c3 00"
        "91 92 a44c414e47 a143 91 a74150495f4b4559"
        "91 95 cd1092 01 cf187cee5455690000 c407636c6175646500 c4092f7372762f73686f70"
        "91 96 cd1092 05 0c c4076d61696e2e7079 ce00011170 02"
        "91 94 a3746370 a93132372e302e302e31 cd1f90 cd109a"
        "91 97 cd1092 0c c4076d61696e2e7079 a5464c4f434b a55752495445 00 ff 90 a0",
    ),
    "branch": (
        records.BranchRecord(name="main", head=4, undo=("0123456789ab",), redo=(), applied=0),
        "95 a46d61696e 04 91 ac303132333435363738396162 90 00",
    ),
    "format": (
        records.FormatRecord(
            version=2,
            compatible=0,
            incompatible=0,
            uuid="0123456789abcdef0123456789abcdef",
            created=T0,
            block_size=65536,
            checksum=0xAA0B7376,
        ),
        "97 02 00 00 d920"
        "3031323334353637383961626364656630313233343536373839616263646566"
        "cf187cee5455690000 ce00010000 ceaa0b7376",
    ),
}

STORED = {
    "dirent": (
        keys.dirent_key(PARENT, b"main.py", EPOCH),
        records.pack_dirent(INO, 8),
        "000000000000000c 08 c8f44120",
    ),
    "link": (keys.link_key(INO, PARENT, b"main.py", EPOCH), b"\x08", "08 e5b3323b"),
    "change": (keys.change_inode_key(EPOCH, INO), b"", "afe02277"),
    "inode": (keys.inode_key(INO, EPOCH), records.WHITEOUT, "1d603a33"),
}
"""Values with their checksums."""

LINE_PIECE = (
    "00000010 de5efdf6456331bfa553154699dd1c6b4836cfbdca51891e4df9c72e3025e654"
    "28b52ffd 20 10 810000 7b2274797065223a2275736572227d0a"
)

BLOCKS = {
    "raw": (
        b"hello",
        None,
        "ea8f163db38682925e4491c5e58d4bb3506ef8c14eb78a86e908c5624a67200f",
        "00 00000005 68656c6c6f",
    ),
    "zstd": (
        b"cowfs " * 20,
        None,
        "4a4470d7d69a72d2921aeb7340dd357b50bc9d4aa0d122be0c5a4d1109adff70",
        "01 00000078 28b52ffd 20 78 6d0000 30 636f77667320 01002f692902",
    ),
    "delta": (
        bytes(range(100)) + b"!" + bytes(range(101, 256)),
        bytes(range(256)),
        "4a4ce4f9d2ddc0e2061c4fdbeaeda1cb5a99c4ab913d01ed903b216f3aff0628",
        "02 00000100 4a495ba42461748eca8fdad618f976aa726cc2903de9fcb40735a786ac1c196b"
        "28b52ffd 60 0000 5d0000 0821020018a0240ca40b08",
    ),
    "patch": (
        bytes(range(256)) + b"the end",
        bytes(range(256)),
        "185e08e6e02c4af253bafa465be12bcf9c2aef8fcb4a6e8ec1a510cbcf852b8c",
        "03 00000107 4a495ba42461748eca8fdad618f976aa726cc2903de9fcb40735a786ac1c196b"
        "01 0100 00 00000007 74686520656e64",
    ),
    "part": (
        b"efgh",
        b"abcdefgh",
        "23cb6e2cef673ae06ea53be5341a710062d1ee5382de081a7af2fdae11d69715",
        "04 00000004 ddaa2ac30a98655962979019e43538326ad7bef0da0e6ac2f3e51fb3513a5cda 00000004",
    ),
}


def plain(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


@pytest.mark.parametrize("name", KEYS)
def test_keys(name: str) -> None:
    key, text = KEYS[name]
    assert key == plain(text)


@pytest.mark.parametrize("name", INODES)
def test_inodes(name: str) -> None:
    record, text = INODES[name]
    assert records.pack_inode(*record) == plain(text)
    assert records.unpack_inode(plain(text)) == record


def test_a_directory_entry() -> None:
    assert records.pack_dirent(INO, 8) == plain("000000000000000c 08")


def test_a_base_record() -> None:
    text = (
        "0000000000000002 0000000000000002 08 000081a4 000000000000fe01 0000000000020002"
        "0000000000000005 187cee5455690000 187cee5455690002"
    )
    assert records.pack_base(BASE) == plain(text)
    assert records.unpack_base(plain(text)) == BASE


def test_an_origin_record() -> None:
    assert records.pack_origin(0, PARENT, b"docs") == plain("00 0000000000000001 646f6373")


@pytest.mark.parametrize("name", HISTORY)
def test_history(name: str) -> None:
    record, text = HISTORY[name]
    assert records.encode(record) == plain(text)
    assert records.decode(plain(text), type(record)) == record


def crc32(data: bytes) -> int:
    """CRC-32 as ISO 3309 has it, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize("table", STORED)
def test_checksums(table: str) -> None:
    key, value, text = STORED[table]
    checksum = of_table(table, version.VERSION)
    assert checksum.seal(key, value) == plain(text)
    assert checksum.open(key, plain(text)) == value
    told = crc32(table.encode() + b"\0" + key + value)
    assert plain(text) == value + told.to_bytes(4, "big")


def test_the_checksum_of_the_format_record() -> None:
    record, text = HISTORY["format"]
    assert version.decode_format(plain(text)) == record
    told = crc32(b"meta\0format" + b"\x96" + plain(text)[1:-5])
    assert told == record.checksum


def test_the_format_record_of_version_1() -> None:
    text = (
        "96 01 00 00 d920"
        "3031323334353637383961626364656630313233343536373839616263646566"
        "cf187cee5455690000 ce00010000"
    )
    record = version.decode_format(plain(text))
    assert (record.version, record.created, record.checksum) == (1, T0, None)


def test_a_piece() -> None:
    """What zstd writes may change with its version; only its meaning is fixed."""
    digest = bytes.fromhex(LINE_HASH)
    assert sessions.chained(bytes(32), LINE) == digest == blake3.blake3(bytes(32) + LINE).digest()
    assert sessions.unpack_piece(plain(LINE_PIECE)) == (digest, LINE)
    assert sessions.pack_piece(digest, LINE)[:36] == plain(LINE_PIECE)[:36]
    assert sessions.piece_key(1, 16) == plain("0000000000000001 0000000000000010")


def test_a_context_is_a_frame_of_its_array() -> None:
    record, text = HISTORY["context"]
    stored = sessions.pack_context(record)
    assert zstandard.ZstdDecompressor().decompress(stored) == plain(text)
    assert zstandard.frame_content_size(stored) == len(plain(text))
    assert sessions.unpack_context(stored) == record


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_read(name: str) -> None:
    data, reference, digest, text = BLOCKS[name]
    assert codec.block_hash(data) == plain(digest)
    assert codec.decode_block(plain(text), plain(digest), reference) == data
    if reference is not None:
        assert codec.delta_reference(plain(text)) == codec.block_hash(reference)


def test_a_raw_block_is_written_like_this() -> None:
    """What zstd writes may change with its version; only its meaning is fixed."""
    data, _, _, text = BLOCKS["raw"]
    assert codec.encode_block(data) == plain(text)


def test_the_documentation_shows_these_examples() -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    shown = re.sub(r"\s", "", text)
    examples = [text for _, text in (*KEYS.values(), *INODES.values(), *HISTORY.values())]
    examples += [text for _, _, text in STORED.values()]
    examples.append(LINE_PIECE)
    examples += [text for block in BLOCKS.values() for text in block[2:]]
    for example in examples:
        assert example.replace(" ", "") in shown, example


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("session", sessions.SessionRecord),
        ("transcript", sessions.TranscriptRecord),
        ("context", sessions.ContextRecord),
    ],
)
def test_the_documentation_lists_the_fields_in_order(name: str, kind: type[msgspec.Struct]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    table = text.partition(f"| | {name} | default |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", table, re.M)
    assert rows == [(f"{at}", field) for at, field in enumerate(kind.__struct_fields__)]
