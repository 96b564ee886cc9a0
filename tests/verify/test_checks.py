"""Every check of `verify` has a test that breaks exactly one thing.

A case's function breaks the sample; the report must then name that check, the paths and the states
that are hit, and nothing else.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from cowfs.format import audit, codec, keys, records, sessions, version
from cowfs.format import copying as copies
from cowfs.format.records import BranchRecord, CheckpointRecord, EpochRecord, GitState
from tests.verify.sample import Hands, Sample, noise

DIRECTORY, REGULAR, SYMLINK = 4, 8, 10
ALL = ("start", "one", "two", "lost", "now")


class Case(NamedTuple):
    """What breaking something must be reported as.

    states: those that are hit, by the sample's names; None for a check that cannot say. paths: None
    likewise. thing: part of the problem's `thing`.
    """

    check: str
    table: str
    thing: str
    states: tuple[str, ...] | None
    paths: tuple[str, ...] | None
    damage: Callable[[Hands], None]


CASES: dict[str, Case] = {}


def case(
    check: str,
    table: str,
    thing: str = "",
    states: tuple[str, ...] | None = None,
    paths: tuple[str, ...] | None = None,
) -> Callable[[Callable[[Hands], None]], Callable[[Hands], None]]:
    """Register a function that breaks the sample."""

    def register(damage: Callable[[Hands], None]) -> Callable[[Hands], None]:
        CASES[damage.__name__] = Case(check, table, thing, states, paths, damage)
        return damage

    return register


def flip(value: bytes, at: int) -> bytes:
    """One bit changed."""
    return value[:at] + bytes((value[at] ^ 1,)) + value[at + 1 :]


# -- records ---------------------------------------------------------------------------------


@case("record", "inode", "", ("one", "two", "lost", "now"), ("src/alias", "src/main"))
def inode_value_too_short(hands: Hands) -> None:
    key = keys.inode_key(hands.inos["src/main"], 1)
    hands.put("inode", key, hands.get("inode", key)[:20])


@case("record", "inode")
def inode_key_too_long(hands: Hands) -> None:
    hands.put("inode", keys.inode_key(hands.inos["fresh"], 4) + b"x", b"")


@case("record", "dirent", "/fresh", ("now",))
def dirent_value_too_long(hands: Hands) -> None:
    key = keys.dirent_key(1, b"fresh", 4)
    hands.put("dirent", key, hands.get("dirent", key) + b"x")


@case("record", "dirent")
def dirent_key_without_name(hands: Hands) -> None:
    hands.put("dirent", keys.dirent_key(1, b"", 4), records.pack_dirent(2, REGULAR))


@case("record", "dirent")
def dirent_name_that_cannot_be(hands: Hands) -> None:
    hands.put("dirent", keys.dirent_key(1, b"a/b", 4), records.pack_dirent(2, REGULAR))


@case("record", "link")
def link_value_too_long(hands: Hands) -> None:
    hands.put("link", keys.link_key(hands.inos["fresh"], 1, b"another", 4), b"\x08\x08")


@case("record", "xattr", "user.a", ("one", "two", "lost", "now"), ("src/alias", "src/main"))
def xattr_value_without_its_mark(hands: Hands) -> None:
    hands.put("xattr", keys.xattr_key(hands.inos["src/main"], b"user.a", 1), b"value")


@case("xattr-name", "xattr", "", ("one", "two", "lost", "now"), ("src/alias", "src/main"))
def xattr_name_too_long(hands: Hands) -> None:
    hands.put("xattr", keys.xattr_key(hands.inos["src/main"], b"u" * 256, 1), b"\1value")


@case("record", "extent")
def extent_value_of_no_known_length(hands: Hands) -> None:
    hands.put("extent", keys.extent_key(hands.inos["fresh"], 9, 4), b"abc")


@case("record", "extent")
def extent_value_of_no_known_kind(hands: Hands) -> None:
    hands.put("extent", keys.extent_key(hands.inos["fresh"], 9, 4), b"\7")


@case("record", "extent", "block 1", None, None)
def extent_beyond_the_largest_file(hands: Hands) -> None:
    hands.put("extent", keys.extent_key(hands.inos["fresh"], 1 << 60, 4), b"")


@case("record", "block")
def block_key_too_short(hands: Hands) -> None:
    hands.put("block", b"short", codec.encode_block(b"x"))


@case("record", "epoch")
def epoch_key_too_short(hands: Hands) -> None:
    hands.put("epoch", b"7", hands.get("epoch", keys.pack_id(1)))


@case("record", "checkpoint")
def checkpoint_that_does_not_decode(hands: Hands) -> None:
    _, value = hands.rows("checkpoint")[-1]
    hands.put("checkpoint", b"f" * 12, value[:-3])


@case("record", "checkpoint", "", ("two",))
def checkpoint_on_an_impossible_commit(hands: Hands) -> None:
    state = GitState("not a commit", "main", 1, 1)
    hands.change_record("checkpoint", _checkpoint_of(hands, 2), CheckpointRecord, git=state)


@case("record", "checkpoint")
def checkpoint_under_another_id(hands: Hands) -> None:
    _, value = hands.rows("checkpoint")[-1]
    hands.put("checkpoint", b"f" * 12, value)


@case("record", "operation")
def operation_that_does_not_decode(hands: Hands) -> None:
    key, value = hands.rows("operation")[0]
    hands.put("operation", key, flip(value, 0))


@case("operation", "operation")
def operation_of_a_later_epoch(hands: Hands) -> None:
    key, _ = hands.rows("operation")[0]
    hands.change_record("operation", key, records.OperationRecord, after=99)


@case("record", "change")
def change_of_no_known_kind(hands: Hands) -> None:
    hands.put("change", keys.pack_id(4) + b"\3" + keys.pack_id(1), b"")


@case("record", "base")
def base_value_too_short(hands: Hands) -> None:
    key = keys.base_key(1, b"link")
    hands.put("base", key, hands.get("base", key)[:-1])


@case("record", "origin")
def origin_value_too_short(hands: Hands) -> None:
    hands.put("origin", keys.pack_id(hands.inos["empty"]), b"\1")


@case("record", "hardlink")
def hardlink_key_too_short(hands: Hands) -> None:
    hands.put("hardlink", b"short", keys.pack_id(1))


@case("record", "orphan")
def orphan_value_too_short(hands: Hands) -> None:
    hands.put("orphan", keys.pack_id(2), b"short")


@case("format", "meta", "format")
def format_without_a_proper_uuid(hands: Hands) -> None:
    hands.change_record("meta", b"format", records.FormatRecord, uuid="none")


@case("record-epoch", "inode")
def inode_version_of_no_epoch(hands: Hands) -> None:
    ino = hands.inos["fresh"]
    hands.put("inode", keys.inode_key(ino, 99), hands.get("inode", keys.inode_key(ino, 4)))


@case("record-epoch", "extent", "block 0")
def extent_of_no_epoch(hands: Hands) -> None:
    _, digest = hands.extent("fresh", 0, 4)
    hands.put("extent", keys.extent_key(hands.inos["fresh"], 0, 99), digest)


@case("record-epoch", "change")
def change_of_no_epoch(hands: Hands) -> None:
    hands.put("change", keys.change_inode_key(99, 1), b"")


# -- blocks and extents ----------------------------------------------------------------------


@case("block-damaged", "block", "", ("one", "two", "lost", "now"), ("src/alias", "src/main"))
def block_with_a_flipped_bit(hands: Hands) -> None:
    _, digest = hands.extent("src/main", 1, 1)
    hands.put("block", digest, flip(hands.get("block", digest), 1000))


# A delta needs its reference: what shows the delta is hit as well.
@case("block-damaged", "block", "", ("one", "two", "lost", "now"), ("src/alias", "src/main"))
def reference_with_a_flipped_bit(hands: Hands) -> None:
    _, _, reference = hands.delta()
    hands.put("block", reference, flip(hands.get("block", reference), 1000))


@case("block-damaged", "block", "", ("two", "lost"), ("src/alias", "src/main"))
def delta_with_a_flipped_bit(hands: Hands) -> None:
    digest, value, _ = hands.delta()
    hands.put("block", digest, flip(value, len(value) - 1))


@case("block-damaged", "block", "", ("now",), ("fresh",))
def block_replaced_by_another_valid_one(hands: Hands) -> None:
    _, digest = hands.extent("fresh", 0, 4)
    hands.put("block", digest, codec.encode_block(b"not what was there"))


@case("block-damaged", "block", "", ("now",), ("fresh",))
def block_cut_short(hands: Hands) -> None:
    _, digest = hands.extent("fresh", 0, 4)
    hands.put("block", digest, b"\1")


@case("block-reference", "block", "", ("two", "lost"), ("src/alias", "src/main"))
def delta_against_a_block_that_is_missing(hands: Hands) -> None:
    digest, value, reference = hands.delta()
    raw = codec.decode_block(
        value, digest, codec.decode_block(hands.get("block", reference), reference)
    )
    other = noise(9, 65536)
    hands.put("block", digest, codec.encode_delta(raw, other, codec.block_hash(other)))


@case("block-reference", "block", "", ("two", "lost"), ("src/alias", "src/main"))
def delta_against_a_delta(hands: Hands) -> None:
    digest, value, reference = hands.delta()
    below = codec.decode_block(hands.get("block", reference), reference)
    raw = codec.decode_block(value, digest, below)
    between = below[:100] + noise(9, 100) + below[200:]
    between_hash = codec.block_hash(between)
    hands.put("block", between_hash, codec.encode_delta(between, below, reference))
    hands.put("block", digest, codec.encode_delta(raw, between, between_hash))


@case("extent-block", "extent", "", ("now",), ("fresh",))
def block_that_is_gone(hands: Hands) -> None:
    _, digest = hands.extent("fresh", 0, 4)
    hands.drop("block", digest)


@case("extent-size", "extent", "block 5", ("now",), ("fresh",))
def extent_beyond_the_end_of_the_file(hands: Hands) -> None:
    _, digest = hands.extent("fresh", 0, 4)
    hands.put("extent", keys.extent_key(hands.inos["fresh"], 5, 4), digest)


@case("extent-size", "extent", "block 0", ("now",), ("fresh",))
def block_longer_than_the_file(hands: Hands) -> None:
    hands.change_inode("fresh", 4, size=999)


def give_up(hands: Hands, path: str, epoch: int) -> None:
    """Thin the first block of a file, as the store's features allow."""
    key, _ = hands.extent(path, 0, epoch)
    hands.put("extent", key, records.EXTENT_THINNED)
    record = version.decode_format(hands.get("meta", b"format"))
    record = version.with_feature(record, version.THINNED)
    hands.put("meta", b"format", records.encode(record))


@case("extent-thinned", "extent", "block 0", ("now",), ("fresh",))
def extent_of_the_present_state_that_is_thinned(hands: Hands) -> None:
    give_up(hands, "fresh", 4)


@case("extent-thinned", "extent", "block 0", ("two", "lost"), ("src/alias", "src/main"))
def extent_that_is_thinned_and_nobody_says_so(hands: Hands) -> None:
    give_up(hands, "src/main", 2)


@case("checkpoint-thinned", "checkpoint", "", ("two",))
def checkpoint_that_says_it_is_thinned_and_is_not(hands: Hands) -> None:
    key = _checkpoint_of(hands, 2)
    hands.change_record("checkpoint", key, CheckpointRecord, thinned=("src",))


@case("checkpoint-thinned", "checkpoint", "", ("one",))
def checkpoint_of_which_others_show_what_was_thinned(hands: Hands) -> None:
    """`two` and `lost` are thinned and say so."""
    give_up(hands, "src/main", 2)
    for epoch in (1, 2, 3):
        key = _checkpoint_of(hands, epoch)
        hands.change_record("checkpoint", key, CheckpointRecord, thinned=("src",))


@case("change-missing", "extent", "block 0", ("now",), ("src/alias", "src/main"))
def extent_of_an_epoch_that_did_not_touch_its_inode(hands: Hands) -> None:
    _, digest = hands.extent("src/main", 0, 1)
    hands.put("extent", keys.extent_key(hands.inos["src/main"], 0, 4), digest)


# -- names -----------------------------------------------------------------------------------


@case("dirent-inode", "dirent", "1/dangling", ("now",), ("dangling",))
def name_of_an_inode_that_is_not_there(hands: Hands) -> None:
    hands.inos[""] = 1
    unused = keys.unpack_id(hands.get("meta", b"next_id")) - 1
    while hands.rows("inode", keys.pack_id(unused)):
        unused -= 1
    hands.name("", b"dangling", unused, REGULAR, 4)


@case("dirent-inode", "dirent", "1/fresh", ("now",), ("fresh",))
def name_with_another_type(hands: Hands) -> None:
    key = keys.dirent_key(1, b"fresh", 4)
    hands.put("dirent", key, records.pack_dirent(hands.inos["fresh"], DIRECTORY))


@case("dirent-inode", "inode", "", ("two", "lost"), ("docs/readme",))
def inode_removed_under_its_name(hands: Hands) -> None:
    ino = hands.inos["docs/readme"]
    hands.put("inode", keys.inode_key(ino, 2), records.WHITEOUT)
    hands.put("change", keys.change_inode_key(2, ino), b"")


@case("link-mirror", "dirent", "1/fresh", ("now",), ("fresh",))
def name_that_the_inode_does_not_know(hands: Hands) -> None:
    hands.drop("link", keys.link_key(hands.inos["fresh"], 1, b"fresh", 4))


@case("link-mirror", "link", "1/fresh")
def name_that_the_directory_does_not_know(hands: Hands) -> None:
    hands.drop("dirent", keys.dirent_key(1, b"fresh", 4))
    hands.drop("change", keys.change_dirent_key(4, 1, b"fresh"))


@case("link-mirror", "link", "1/fresh", ("now",), ("fresh",))
def link_with_another_type(hands: Hands) -> None:
    hands.put("link", keys.link_key(hands.inos["fresh"], 1, b"fresh", 4), bytes((SYMLINK,)))


@case("link-mirror", "dirent", "/util", ("two", "lost"), ("src/util",))
def removed_name_that_the_inode_still_knows(hands: Hands) -> None:
    hands.drop("link", keys.link_key(hands.inos["src/util"], hands.inos["src"], b"util", 2))
    # The inode has to live on, or it would be a name of nothing.
    hands.drop("inode", keys.inode_key(hands.inos["src/util"], 2))
    hands.drop("change", keys.change_inode_key(2, hands.inos["src/util"]))


@case("link-mirror", "link", "/util", ("two", "lost"), ("src/util",))
def name_that_came_back_in_the_directory_only(hands: Hands) -> None:
    src, ino = hands.inos["src"], hands.inos["src/util"]
    hands.drop("dirent", keys.dirent_key(src, b"util", 2))
    hands.drop("change", keys.change_dirent_key(2, src, b"util"))
    hands.drop("inode", keys.inode_key(ino, 2))
    hands.drop("change", keys.change_inode_key(2, ino))


@case("inode-links", "inode", "", ("now",), ())
def inode_without_a_name(hands: Hands) -> None:
    hands.unname("", b"fresh", hands.inos["fresh"], 4)


@case("file-nlink", "inode", "", ("one", "now"), ("src/alias", "src/main"))
def file_with_a_wrong_nlink(hands: Hands) -> None:
    hands.change_inode("src/main", 1, nlink=3)


@case("file-nlink", "inode", "", ("now",), ("extra", "shared1", "shared2"))
def imported_file_with_more_names_than_nlink(hands: Hands) -> None:
    hands.name("", b"extra", hands.inos["shared1"], REGULAR, 4)


@case("directory-nlink", "inode", "", ("one", "now"), ("src",))
def directory_with_a_wrong_nlink(hands: Hands) -> None:
    hands.change_inode("src", 1, nlink=2)


@case("directory-parent", "inode", "", ("now",), ("second", "src/deep/inner"))
def directory_with_two_names(hands: Hands) -> None:
    hands.name("", b"second", hands.inos["src/deep/inner"], DIRECTORY, 4)
    hands.change_inode("", 4, nlink=hands.inode("", 4).nlink + 1)


@case("directory-parent", "inode", "", ("now",), ())
def directory_below_itself(hands: Hands) -> None:
    """src/deep moves into src/deep/inner."""
    src, deep, inner = hands.inos["src"], hands.inos["src/deep"], hands.inos["src/deep/inner"]
    hands.name("src/deep/inner", b"deep", deep, DIRECTORY, 4)
    hands.put("dirent", keys.dirent_key(src, b"deep", 4), records.WHITEOUT)
    hands.put("link", keys.link_key(deep, src, b"deep", 4), records.WHITEOUT)
    hands.put("change", keys.change_dirent_key(4, src, b"deep"), b"")
    for path, ino, step in (("src", src, -1), ("src/deep/inner", inner, 1)):
        record = hands.inode(path, 1)
        record = record._replace(nlink=record.nlink + step)
        hands.put("inode", keys.inode_key(ino, 4), records.pack_inode(*record))
        hands.put("change", keys.change_inode_key(4, ino), b"")


@case("directory-parent", "inode", "1", ("now",), (".",))
def root_with_a_name(hands: Hands) -> None:
    hands.name("src", b"root", 1, DIRECTORY, 4)
    record = hands.inode("src", 1)
    record = record._replace(nlink=record.nlink + 1)
    hands.put("inode", keys.inode_key(hands.inos["src"], 4), records.pack_inode(*record))
    hands.put("change", keys.change_inode_key(4, hands.inos["src"]), b"")


@case("dirent-parent", "inode", "", ("now",), ("fresh",))
def entry_in_a_file(hands: Hands) -> None:
    hands.name("fresh", b"below", hands.inos["shared1"], REGULAR, 4)
    record = hands.inode("shared1", 0)
    record = record._replace(nlink=3)
    hands.put("inode", keys.inode_key(hands.inos["shared1"], 4), records.pack_inode(*record))
    hands.put("change", keys.change_inode_key(4, hands.inos["shared1"]), b"")


# -- fields of inodes ------------------------------------------------------------------------


@case("inode-fields", "inode", "", ("now",), ("fresh",))
def inode_with_unknown_flags(hands: Hands) -> None:
    hands.change_inode("fresh", 4, flags=128)


@case("inode-fields", "inode", "", ("now",), ("fresh",))
def inode_with_more_base_than_size(hands: Hands) -> None:
    hands.put("origin", keys.pack_id(hands.inos["fresh"]), records.pack_origin(1, 1, b"fresh"))
    hands.change_inode("fresh", 4, base_size=5000)


@case("inode-type", "inode")
def inode_that_becomes_something_else(hands: Hands) -> None:
    hands.change_inode("src/main", 2, mode=stat.S_IFSOCK | 0o644)


@case("symlink-target", "inode", "", ALL, ("link",))
def symlink_without_a_target(hands: Hands) -> None:
    hands.change_inode("link", 0, target=b"", size=0)


@case("symlink-target", "inode", "", ("now",), ("fresh",))
def file_with_a_target(hands: Hands) -> None:
    hands.change_inode("fresh", 4, target=b"elsewhere")


@case("content-owner", "inode", "", ("now",), ("fresh",))
def two_inodes_with_one_content(hands: Hands) -> None:
    hands.change_inode("fresh", 4, content=hands.inos["src/main"], size=100_000)


# -- change records --------------------------------------------------------------------------


@case("change-missing", "inode", "", ("now",), ("fresh",))
def change_record_of_an_inode_missing(hands: Hands) -> None:
    hands.drop("change", keys.change_inode_key(4, hands.inos["fresh"]))


@case("change-missing", "dirent", "1/fresh", ("now",), (".",))
def change_record_of_a_name_missing(hands: Hands) -> None:
    hands.drop("change", keys.change_dirent_key(4, 1, b"fresh"))


@case("change-missing", "xattr", "user.b", ("now",), ("src/alias", "src/main"))
def attribute_changed_in_secret(hands: Hands) -> None:
    hands.put("xattr", keys.xattr_key(hands.inos["src/main"], b"user.b", 4), b"\1secret")


@case("change-stray", "change", "", ("now",), ("docs/readme",))
def change_record_of_nothing(hands: Hands) -> None:
    hands.put("change", keys.change_inode_key(4, hands.inos["docs/readme"]), b"")


@case("change-stray", "change", "/nothing", ("now",), (".",))
def change_record_of_no_name(hands: Hands) -> None:
    hands.put("change", keys.change_dirent_key(4, 1, b"nothing"), b"")


# -- history ---------------------------------------------------------------------------------


@case("epoch-parent", "epoch", "3")
def epoch_without_a_parent(hands: Hands) -> None:
    hands.change_record("epoch", keys.pack_id(3), EpochRecord, parent=77)


@case("epoch-parent", "epoch", "3")
def epoch_older_than_its_parent(hands: Hands) -> None:
    hands.change_record("epoch", keys.pack_id(3), EpochRecord, parent=4)


@case("epoch-run", "epoch", "3", ("lost",))
def epoch_of_another_run(hands: Hands) -> None:
    hands.change_record("epoch", keys.pack_id(3), EpochRecord, run_start=3)


@case("epoch-open", "epoch", "3")
def second_open_epoch(hands: Hands) -> None:
    hands.change_record("epoch", keys.pack_id(3), EpochRecord, sealed=0)


@case("epoch-open", "epoch", "4")
def sealed_head(hands: Hands) -> None:
    hands.change_record("epoch", keys.pack_id(4), EpochRecord, sealed=12345)


@case("epoch-time", "epoch", "3")
def epoch_without_a_time(hands: Hands) -> None:
    hands.change_record("epoch", keys.pack_id(3), EpochRecord, opened=0)


@case("epoch-checkpoint", "epoch", "2", ("two",))
def epoch_sealed_by_no_checkpoint(hands: Hands) -> None:
    hands.change_record("epoch", keys.pack_id(2), EpochRecord, checkpoint="0" * 12)


@case("epoch-checkpoint", "epoch", "2", ("two",))
def epoch_sealed_by_the_checkpoint_of_another(hands: Hands) -> None:
    other = _checkpoint_of(hands, 1).decode()
    hands.change_record("epoch", keys.pack_id(2), EpochRecord, checkpoint=other)


def _checkpoint_of(hands: Hands, epoch: int) -> bytes:
    for key, value in hands.rows("checkpoint"):
        if records.decode(value, CheckpointRecord).epoch == epoch:
            return key
    raise AssertionError(f"no checkpoint of epoch {epoch}")


@case("checkpoint-epoch", "checkpoint", "", ("two",))
def checkpoint_of_no_epoch(hands: Hands) -> None:
    hands.change_record("checkpoint", _checkpoint_of(hands, 2), CheckpointRecord, epoch=99)


@case("checkpoint-epoch", "checkpoint", "", ("two",))
def checkpoint_of_the_open_epoch(hands: Hands) -> None:
    hands.change_record("checkpoint", _checkpoint_of(hands, 2), CheckpointRecord, epoch=4)


@case("label", "label", "nowhere")
def label_of_no_checkpoint(hands: Hands) -> None:
    hands.put("label", b"nowhere", b"0" * 12)


@case("label", "label", "v2", ("one",))
def label_of_a_checkpoint_with_another(hands: Hands) -> None:
    hands.put("label", b"v2", _checkpoint_of(hands, 1))


@case("label", "label", "v1", ("one",))
def label_that_is_missing(hands: Hands) -> None:
    hands.drop("label", b"v1")


@case("branch", "branch", "main")
def branch_that_would_undo_to_nowhere(hands: Hands) -> None:
    hands.change_record("branch", b"main", BranchRecord, undo=("0" * 12,))


@case("branch", "branch", "main")
def branch_that_would_redo_to_nowhere(hands: Hands) -> None:
    hands.change_record("branch", b"main", BranchRecord, redo=("0" * 12,))


@case("branch", "branch", "main")
def branch_that_applied_no_epoch(hands: Hands) -> None:
    hands.change_record("branch", b"main", BranchRecord, applied=99)


@case("branch", "branch", "main")
def branch_with_another_name(hands: Hands) -> None:
    hands.change_record("branch", b"main", BranchRecord, name="other")


@case("applying", "meta", "applying")
def apply_of_no_epoch(hands: Hands) -> None:
    hands.put("meta", b"applying", keys.pack_id(99))


@case("garbage", "meta", "garbage 99")
def garbage_of_no_epoch(hands: Hands) -> None:
    hands.put("meta", b"garbage\0" + keys.pack_id(99), b"")


@case("garbage", "meta", "garbage 2")
def garbage_of_an_epoch_with_a_checkpoint(hands: Hands) -> None:
    hands.put("meta", b"garbage\0" + keys.pack_id(2), b"")


WAITING = b"/home/.cowfs-0123abcd-0"


def copying(hands: Hands, *fields: Any) -> None:
    hands.put("meta", copies.copying_key("c1"), records.encode(copies.CopyingRecord(*fields)))


@case("copying", "meta", "copying c1")
def copy_that_does_not_decode(hands: Hands) -> None:
    hands.put("meta", copies.copying_key("c1"), b"\x91\x01")


@case("copying", "meta", "copying c1")
def copy_in_no_known_state(hands: Hands) -> None:
    copying(hands, "begun", ((WAITING, b"/home/name"),))


@case("copying", "meta", "copying c1")
def copy_to_another_directory(hands: Hands) -> None:
    copying(hands, copies.PREPARED, ((WAITING, b"/etc/name"),))


@case("copying", "meta", "copying c1")
def copy_of_what_is_not_its_own(hands: Hands) -> None:
    copying(hands, copies.PREPARED, ((b"/home/precious", b"/home/name"),))


@case("copying", "meta", "copying c1")
def copy_without_a_session(hands: Hands) -> None:
    copying(hands, copies.COMMITTED, ((WAITING, b"/home/name"),))


@case("counter", "meta", "next_id")
def next_id_that_is_in_use(hands: Hands) -> None:
    hands.put("meta", b"next_id", keys.pack_id(2))


@case("counter", "meta", "next_epoch")
def next_epoch_that_is_in_use(hands: Hands) -> None:
    hands.put("meta", b"next_epoch", keys.pack_id(4))


@case("counter", "meta", "next_id")
def next_id_that_is_missing(hands: Hands) -> None:
    hands.drop("meta", b"next_id")


# -- base ------------------------------------------------------------------------------------


@case("base-entry", "base", "/stray")
def base_entry_of_a_directory_that_is_not_from_there(hands: Hands) -> None:
    value = hands.get("base", keys.base_key(1, b"shared1"))
    hands.put("base", keys.base_key(hands.inos["src"], b"stray"), value)


@case("base-entry", "base", "1/empty", None, ("empty",))
def base_entry_of_another_type(hands: Hands) -> None:
    key = keys.base_key(1, b"empty")
    record = records.unpack_base(hands.get("base", key))
    hands.put("base", key, records.pack_base(record._replace(kind=REGULAR)))


@case("origin", "origin", "")
def origin_in_no_known_state(hands: Hands) -> None:
    key = keys.pack_id(hands.inos["empty"])
    hands.put("origin", key, b"\7" + hands.get("origin", key)[1:])


@case("origin", "origin", "")
def origin_in_a_directory_that_is_not_from_there(hands: Hands) -> None:
    hands.put(
        "origin",
        keys.pack_id(hands.inos["empty"]),
        records.pack_origin(records.ORIGIN_DONE, hands.inos["src"], b"empty"),
    )


@case("origin", "inode", "", ALL, ("docs/readme",))
def imported_content_that_lies_nowhere(hands: Hands) -> None:
    hands.drop("origin", keys.pack_id(hands.inos["docs/readme"]))


@case("origin", "inode", "", ALL, ("docs",))
def unlisted_directory_with_entries(hands: Hands) -> None:
    key = keys.pack_id(hands.inos["docs"])
    hands.put("origin", key, records.pack_origin(records.ORIGIN_UNLISTED, 1, b"docs"))


@case("hardlink", "hardlink")
def hardlink_to_a_directory(hands: Hands) -> None:
    hands.put("hardlink", keys.hardlink_key(1, 1), keys.pack_id(hands.inos["docs"]))


@case("orphan", "orphan", "", None, ("fresh",))
def orphan_with_the_content_of_another_inode(hands: Hands) -> None:
    value = keys.extent_prefix(hands.inos["fresh"], 4)
    hands.put("orphan", keys.pack_id(hands.inos["three"]), value)


@case("orphan", "orphan")
def orphan_of_no_epoch(hands: Hands) -> None:
    ino = hands.inos["three"]
    hands.put("orphan", keys.pack_id(ino), keys.extent_prefix(ino, 99))


# -- who did it ------------------------------------------------------------------------------


def process(hands: Hands, number: int, **fields: Any) -> None:
    hands.change_record("process", keys.pack_id(number), audit.ProcessRecord, **fields)


def told(hands: Hands, at: int, **fields: Any) -> None:
    """Change one of the audit log's records, oldest first."""
    hands.change_record("audit", hands.rows("audit")[at][0], audit.AuditRecord, **fields)


@case("record", "process")
def process_without_a_number(hands: Hands) -> None:
    hands.put("process", keys.pack_id(1), hands.get("process", keys.pack_id(2)))


@case("record", "process", "3")
def process_that_is_no_record(hands: Hands) -> None:
    hands.put("process", keys.pack_id(3), b"\x90")
    for key, _ in hands.rows("audit"):
        hands.drop("audit", key)


@case("process", "process", "3")
def process_with_a_younger_parent(hands: Hands) -> None:
    process(hands, 3, parent=3)


@case("process", "process", "2")
def process_with_a_parent_that_is_not_there(hands: Hands) -> None:
    hands.put("process", keys.pack_id(9), hands.get("process", keys.pack_id(2)))
    process(hands, 2, pid=-1)


@case("record", "audit")
def audit_record_that_does_not_decode(hands: Hands) -> None:
    hands.put("audit", hands.rows("audit")[0][0], b"\x91\x01")


@case("audit", "audit")
def audit_record_without_operations(hands: Hands) -> None:
    told(hands, 0, operations=())


@case("audit", "audit")
def audit_record_with_an_unknown_operation(hands: Hands) -> None:
    told(hands, 0, operations=(audit.Operation(99, 0, 1, 8, 0, b"x"),))


@case("audit", "audit")
def audit_record_with_an_operation_nowhere(hands: Hands) -> None:
    told(hands, 0, operations=(audit.Operation(audit.MADE, 0, 1, 8, 7, b"x"),))


@case("audit", "audit")
def audit_record_of_the_future(hands: Hands) -> None:
    told(hands, 0, time=keys.unpack_id(hands.rows("audit")[0][0]) + 1)


@case("audit-epoch", "audit")
def audit_record_of_an_epoch_that_was_over(hands: Hands) -> None:
    told(hands, -1, epoch=2)


@case("audit-epoch", "audit")
def audit_record_of_an_epoch_to_come(hands: Hands) -> None:
    told(hands, -1, epoch=9)


@case("audit-process", "audit")
def audit_record_of_no_process(hands: Hands) -> None:
    told(hands, 0, process=77)


# -- sessions --------------------------------------------------------------------------------


def session(hands: Hands, name: bytes, **fields: Any) -> None:
    hands.change_record("session", name, sessions.SessionRecord, **fields)


def transcript(hands: Hands, number: int, **fields: Any) -> None:
    key = keys.pack_id(number)
    record = records.decode(hands.get("transcript", key), sessions.TranscriptRecord)
    hands.put("transcript", key, records.encode(msgspec.structs.replace(record, **fields)))


def context(hands: Hands, epoch: int, **fields: Any) -> None:
    key = _checkpoint_of(hands, epoch)
    record = sessions.unpack_context(hands.get("context", key))
    changed = msgspec.structs.replace(record, **fields)
    hands.put("context", key, sessions.pack_context(changed))


def marks_of(hands: Hands, epoch: int) -> tuple[sessions.Mark, ...]:
    value = hands.get("context", _checkpoint_of(hands, epoch))
    return sessions.unpack_context(value).marks


@case("record", "session", "s1/a1")
def session_that_does_not_decode(hands: Hands) -> None:
    hands.put("session", b"s1/a1", b"\x91\x01")


@case("record", "session", "s2")
def session_under_another_id(hands: Hands) -> None:
    hands.put("session", b"s2", hands.get("session", b"s1"))


@case("session", "session", "s1")
def session_in_no_known_state(hands: Hands) -> None:
    session(hands, b"s1", state="asleep")


@case("session", "session", "s1")
def session_that_ended_and_did_not(hands: Hands) -> None:
    session(hands, b"s1", ended=5)


@case("session", "session", "s1/a1")
def sub_agent_of_another_session(hands: Hands) -> None:
    hands.put("session", b"s0", records.encode(sessions.SessionRecord("s0", "claude")))
    session(hands, b"s1/a1", parent="s0")


@case("session-parent", "session", "s7/a1")
def sub_agent_of_no_session(hands: Hands) -> None:
    record = sessions.SessionRecord("s7/a1", "claude", parent="s7")
    hands.put("session", b"s7/a1", records.encode(record))


@case("session-file", "session", "s1")
def session_that_goes_on_with_no_transcript(hands: Hands) -> None:
    session(hands, b"s1", files=(1, 2, 77))


@case("session-file", "session", "s2")
def session_that_goes_on_with_the_file_of_another(hands: Hands) -> None:
    hands.put("session", b"s2", records.encode(sessions.SessionRecord("s2", "x", files=(1,))))


@case("record", "transcript")
def transcript_without_a_number(hands: Hands) -> None:
    hands.put("transcript", b"1", hands.get("transcript", keys.pack_id(1)))


@case("record", "transcript", "2")
def transcript_that_does_not_decode(hands: Hands) -> None:
    hands.put("transcript", keys.pack_id(2), b"\x90")


@case("transcript", "transcript", "2", ("two",))
def transcript_of_no_known_kind(hands: Hands) -> None:
    transcript(hands, 2, kind="pages")


@case("transcript", "transcript", "2", ("two",))
def transcript_that_would_be_written_elsewhere(hands: Hands) -> None:
    transcript(hands, 2, name="../.bashrc")


@case("transcript", "transcript", "1", ("one", "two"))
def transcript_shorter_than_its_pieces(hands: Hands) -> None:
    transcript(hands, 1, length=16)


@case("transcript", "transcript", "1", ("one", "two"))
def transcript_with_another_end(hands: Hands) -> None:
    transcript(hands, 1, tail=b"something else")


@case("transcript", "transcript", "9")
def transcript_without_pieces(hands: Hands) -> None:
    hands.put("transcript", keys.pack_id(9), hands.get("transcript", keys.pack_id(2)))


@case("record", "piece", "2 at 0", ("two",))
def piece_that_does_not_decode(hands: Hands) -> None:
    key = sessions.piece_key(2, 0)
    hands.put("piece", key, hands.get("piece", key)[:-3])


@case("record", "piece")
def piece_key_too_short(hands: Hands) -> None:
    hands.put("piece", b"\xff" * 12, hands.get("piece", sessions.piece_key(2, 0)))


@case("piece", "piece", "1 at 53", ())
def piece_that_is_missing_in_the_middle(hands: Hands) -> None:
    hands.drop("piece", sessions.piece_key(1, 16))


@case("piece", "piece", "1 at 16", ("two",))
def piece_of_something_else(hands: Hands) -> None:
    key, old = sessions.piece_key(1, 16), hands.get("piece", sessions.piece_key(1, 16))
    digest, data = sessions.unpack_piece(old)
    hands.put("piece", key, sessions.pack_piece(digest, data.upper()))


@case("record", "context", "", ("two",))
def context_that_does_not_decode(hands: Hands) -> None:
    key = _checkpoint_of(hands, 2)
    hands.put("context", key, hands.get("context", key)[:-9])


@case("record", "context")
def context_of_what_can_be_no_checkpoint(hands: Hands) -> None:
    hands.put("context", b"no checkpoint", hands.get("context", _checkpoint_of(hands, 2)))


@case("context", "context", "0" * 12)
def context_of_no_checkpoint(hands: Hands) -> None:
    hands.put("context", b"0" * 12, hands.get("context", _checkpoint_of(hands, 2)))


@case("context", "context", "", ("two",))
def context_of_another_session_than_its_checkpoint(hands: Hands) -> None:
    context(hands, 2, session="s1/a1")


@case("context", "context", "", ("two",))
def context_of_an_unknown_event(hands: Hands) -> None:
    context(hands, 2, event="full moon")


@case("context", "context", "", ("two",))
def context_with_an_impossible_port(hands: Hands) -> None:
    context(hands, 2, ports=(sessions.ListeningPort("tcp", "::", 1 << 16, 1),))


@case("context", "context", "", ("two",))
def context_with_a_variable_twice(hands: Hands) -> None:
    context(hands, 2, environment=(("LANG", "C"), ("LANG", "C")))


@case("context-mark", "context", "", ("two",))
def mark_of_no_transcript(hands: Hands) -> None:
    mark, *others = marks_of(hands, 2)
    context(hands, 2, marks=(msgspec.structs.replace(mark, transcript=77), *others))


@case("context-mark", "context", "", ("two",))
def mark_within_a_piece(hands: Hands) -> None:
    mark, *others = marks_of(hands, 2)
    context(hands, 2, marks=(msgspec.structs.replace(mark, length=20), *others))


@case("context-mark", "context", "", ("two",))
def mark_beyond_the_end(hands: Hands) -> None:
    mark, *others = marks_of(hands, 2)
    context(hands, 2, marks=(msgspec.structs.replace(mark, length=5000), *others))


@case("context-mark", "context", "", ("one",))
def mark_with_another_hash(hands: Hands) -> None:
    (mark,) = marks_of(hands, 1)
    context(hands, 1, marks=(msgspec.structs.replace(mark, hash=bytes(32)),))


@case("checkpoint-session", "checkpoint", "", ("lost",))
def checkpoint_of_no_session(hands: Hands) -> None:
    hands.change_record("checkpoint", _checkpoint_of(hands, 3), CheckpointRecord, session="s9")


# -- the tests -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_exactly_that_check_reports_it(sample: Sample, name: str) -> None:
    wanted = CASES[name]
    with sample.open() as hands:
        wanted.damage(hands)
    report = sample.verify()
    assert {problem.check for problem in report.problems} == {wanted.check}, report.problems
    assert {problem.table for problem in report.problems} == {wanted.table}
    assert any(wanted.thing in problem.thing for problem in report.problems)
    states = {sample.names[c] for problem in report.problems for c in problem.checkpoints}
    paths = {path for problem in report.problems for path in problem.paths}
    if wanted.states is not None:
        assert states == set(wanted.states)
    if wanted.paths is not None:
        assert paths == set(wanted.paths)
    assert report.skipped == []
