"""Git-style patches: comparing lines, and writing one file's change as git does.

The format is that of git-diff(1), "Generating patch text with -p", with two liberties that
`git apply` and GNU patch allow: names with a space are quoted, because GNU patch ends a name in
the line `diff --git` at a space; and the line `index` is left out where the tools can do without
it. GNU patch cannot put a directory where a file was, or the other way round, in one patch, and
knows no binary contents; `git apply` does it all.

Threading: pure functions.
"""

from __future__ import annotations

import base64
import hashlib
import re
import stat
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONTEXT = 3
"""Unchanged lines around a change."""

_EDITS = 256
"""Edits that are looked for in a part without anchors, before it is replaced as a whole."""
_DEPTH = 64
_NO_OBJECT = "0" * 40

Block = tuple[int, int, int, int]
"""Lines old[a:b] became new[c:d]."""


# -- comparing lines -----------------------------------------------------------------------------


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their newlines; only LF ends a line."""
    lines = data.split(b"\n")
    last = lines.pop()
    out = [line + b"\n" for line in lines]
    if last:
        out.append(last)
    return out


def is_binary(data: bytes) -> bool:
    """Whether content is no text: it has a NUL byte."""
    return b"\0" in data


def count_lines(old: bytes, new: bytes) -> tuple[int, int]:
    """(added, removed) lines."""
    if not old or not new:
        return _line_count(new), _line_count(old)
    blocks = changed_blocks(split_lines(old), split_lines(new))
    return sum(d - c for _, _, c, d in blocks), sum(b - a for a, b, _, _ in blocks)


def _line_count(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def changed_blocks(old: Sequence[bytes], new: Sequence[bytes]) -> list[Block]:
    """What differs between two lists of lines, ascending. [] when they are equal.

    Lines that occur once on both sides are anchors (patience diff); between them the shortest edit
    script is looked for (Myers) as long as it is short. So the time is nearly linear also where a
    large file was rewritten.
    """
    numbers: dict[bytes, int] = {}
    one = [numbers.setdefault(line, len(numbers)) for line in old]
    two = [numbers.setdefault(line, len(numbers)) for line in new]
    matches = sorted(_matches(one, two))
    matches.append((len(one), len(two), 0))
    blocks: list[Block] = []
    a = c = 0
    for i, j, length in matches:
        if i > a or j > c:
            blocks.append((a, i, c, j))
        a, c = i + length, j + length
    return blocks


def _matches(one: list[int], two: list[int]) -> Iterator[tuple[int, int, int]]:
    """(place in one, place in two, length) of runs of equal lines, in any order."""
    stack = [(0, len(one), 0, len(two), 0)]
    while stack:
        a, b, c, d, depth = stack.pop()
        start = a
        while a < b and c < d and one[a] == two[c]:
            a += 1
            c += 1
        if a > start:
            yield start, c - (a - start), a - start
        end = b
        while a < b and c < d and one[b - 1] == two[d - 1]:
            b -= 1
            d -= 1
        if end > b:
            yield b, d, end - b
        if a == b or c == d:
            continue
        anchors = _anchors(one, two, a, b, c, d) if depth < _DEPTH else []
        if not anchors:
            yield from _shortest(one, two, a, b, c, d)
            continue
        for i, j in anchors:
            yield i, j, 1
            stack.append((a, i, c, j, depth + 1))
            a, c = i + 1, j + 1
        stack.append((a, b, c, d, depth + 1))


def _anchors(
    one: list[int], two: list[int], a: int, b: int, c: int, d: int
) -> list[tuple[int, int]]:
    """The longest series of lines, in order on both sides, that occur once on each."""
    place = _unique(one, a, b)
    other = _unique(two, c, d)
    pairs = [(i, other[line]) for line, i in place.items() if line in other]
    pairs.sort()
    # Longest increasing subsequence of the places in `two` (patience sorting).
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for at, (_, j) in enumerate(pairs):
        pile = bisect_left(tops, j)
        before.append(ends[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(j)
            ends.append(at)
        else:
            tops[pile] = j
            ends[pile] = at
    series = []
    at = ends[-1] if ends else -1
    while at >= 0:
        series.append(pairs[at])
        at = before[at]
    series.reverse()
    return series


def _unique(lines: list[int], start: int, end: int) -> dict[int, int]:
    """Line to place, of the lines that occur once."""
    found: dict[int, int] = {}
    for at in range(start, end):
        line = lines[at]
        found[line] = -1 if line in found else at
    return {line: at for line, at in found.items() if at >= 0}


def _shortest(
    one: list[int], two: list[int], a: int, b: int, c: int, d: int
) -> Iterator[tuple[int, int, int]]:
    """Matches of the shortest edit script; none when it needs more than `_EDITS` edits.

    E. Myers, "An O(ND) difference algorithm and its variations", 1986. `reach[k]` is how far into
    `one` the furthest path on diagonal k gets.
    """
    n, m = b - a, d - c
    reach = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(n + m, _EDITS) + 1):
        history.append(dict(reach))
        for k in range(-edits, edits + 1, 2):
            if k == -edits or (k != edits and reach[k - 1] < reach[k + 1]):
                x = reach[k + 1]
            else:
                x = reach[k - 1] + 1
            y = x - k
            while x < n and y < m and one[a + x] == two[c + y]:
                x += 1
                y += 1
            reach[k] = x
            if x >= n and y >= m:
                yield from _walk_back(history, k, x, a, c)
                return


def _walk_back(
    history: list[dict[int, int]], k: int, x: int, a: int, c: int
) -> Iterator[tuple[int, int, int]]:
    for edits in range(len(history) - 1, -1, -1):
        reach = history[edits]
        if edits == 0:
            start = 0
            above = k
        elif k == -edits or (k != edits and reach[k - 1] < reach[k + 1]):
            above = k + 1
            start = reach[above]
        else:
            above = k - 1
            start = reach[above] + 1
        if x > start:
            yield a + start, c + start - k, x - start
        if edits:
            x, k = reach[above], above


# -- names ---------------------------------------------------------------------------------------

_ESCAPES = {
    7: b"\\a",
    8: b"\\b",
    9: b"\\t",
    10: b"\\n",
    11: b"\\v",
    12: b"\\f",
    13: b"\\r",
    34: b'\\"',
    92: b"\\\\",
}
_SPECIAL = re.compile(rb'[\x00-\x20"\\\x7f-\xff]')
_TO_ESCAPE = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')


def quote(name: bytes) -> bytes:
    """A name as git prints it: in double quotes with C escapes when it has special bytes."""
    if not _SPECIAL.search(name):
        return name
    escaped = _TO_ESCAPE.sub(
        lambda found: _ESCAPES.get(found[0][0]) or b"\\%03o" % found[0][0], name
    )
    return b'"' + escaped + b'"'


# -- one file's change ---------------------------------------------------------------------------


def git_mode(mode: int) -> int | None:
    """The mode that git knows for a file's mode; None for what git cannot hold."""
    if stat.S_ISREG(mode):
        return 0o100755 if mode & stat.S_IXUSR else 0o100644
    if stat.S_ISLNK(mode):
        return 0o120000
    return None


@dataclass(frozen=True, slots=True)
class Blob:
    """One side of a change. mode: as of `git_mode`. data: content; a symbolic link's target."""

    path: bytes
    mode: int
    data: bytes


def file_patch(old: Blob | None, new: Blob | None) -> bytes:
    """The change of one file; None is a file that does not exist.

    Different paths are a rename. A change of type must be written as deletion and creation.
    The answer is b"" when nothing differs.
    """
    side = new or old
    if side is None or old == new:
        return b""
    old_name = b"a/" + (old or side).path
    new_name = b"b/" + (new or side).path
    head = [b"diff --git %s %s\n" % (quote(old_name), quote(new_name))]
    before, after = (old.data if old else b""), (new.data if new else b"")
    if old is None:
        head.append(b"new file mode %o\n" % side.mode)
    elif new is None:
        head.append(b"deleted file mode %o\n" % side.mode)
    else:
        if old.mode != new.mode:
            head.append(b"old mode %o\nnew mode %o\n" % (old.mode, new.mode))
        if old.path != new.path:
            head.append(b"similarity index %d%%\n" % similarity(before, after))
            head.append(b"rename from %s\nrename to %s\n" % (quote(old.path), quote(new.path)))
    binary = is_binary(before) or is_binary(after)
    whole = old is None or new is None
    if binary or (whole if before == after else side.mode == 0o120000):
        # Besides git, for binary contents, GNU patch needs this line: to delete an empty file, and
        # to know that a link is one.
        head.append(_index(old, new))
    if before == after:
        return b"".join(head)
    if binary:
        head.append(b"GIT binary patch\n")
        head.extend(_literal(after))
        head.extend(_literal(before))
        return b"".join(head)
    head.append(b"--- %s\n" % (quote(old_name) if old else b"/dev/null"))
    head.append(b"+++ %s\n" % (quote(new_name) if new else b"/dev/null"))
    head.extend(hunks(split_lines(before), split_lines(after)))
    return b"".join(head)


def differs(old_path: bytes, new_path: bytes) -> bytes:
    """The line that names a changed file without its content; no tool takes it for a patch."""
    return b"Binary files %s and %s differ\n" % (quote(b"a/" + old_path), quote(b"b/" + new_path))


def similarity(old: bytes, new: bytes) -> int:
    """Per cent of the larger content that is the same, by lines; 100 only for equal contents."""
    if old == new:
        return 100
    lines = split_lines(old)
    same = sum(map(len, lines))
    for a, b, _, _ in changed_blocks(lines, split_lines(new)):
        same -= sum(map(len, lines[a:b]))
    return min(99, same * 100 // max(len(old), len(new)))


def hunks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[bytes]:
    """The body of a unified diff."""
    groups: list[list[Block]] = []
    for block in changed_blocks(old, new):
        if groups and block[0] - groups[-1][-1][1] <= 2 * CONTEXT:
            groups[-1].append(block)
        else:
            groups.append([block])
    for group in groups:
        first, last = group[0], group[-1]
        lead = min(CONTEXT, first[0])
        tail = min(CONTEXT, len(old) - last[1])
        a, c = first[0] - lead, first[2] - lead
        b, d = last[1] + tail, last[3] + tail
        yield b"@@ -%s +%s @@\n" % (_range(a, b), _range(c, d))
        at = a
        for start, end, new_start, new_end in group:
            yield from _lines(b" ", old[at:start])
            yield from _lines(b"-", old[start:end])
            yield from _lines(b"+", new[new_start:new_end])
            at = end
        yield from _lines(b" ", old[at:b])


def _range(start: int, end: int) -> bytes:
    count = end - start
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if count else start, count)


def _lines(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line
        if not line.endswith(b"\n"):
            yield b"\n\\ No newline at end of file\n"


# -- binary --------------------------------------------------------------------------------------


def blob_id(data: bytes) -> str:
    """The name that git gives to this content (SHA-1)."""
    digest = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    digest.update(data)
    return digest.hexdigest()


def _index(old: Blob | None, new: Blob | None) -> bytes:
    one = blob_id(old.data) if old else _NO_OBJECT
    two = blob_id(new.data) if new else _NO_OBJECT
    mode = f" {old.mode:o}" if old and new and old.mode == new.mode else ""
    return f"index {one}..{two}{mode}\n".encode()


def _literal(data: bytes) -> Iterator[bytes]:
    """A whole content. A patch has both, the new one first, so that it also applies backwards."""
    yield b"literal %d\n" % len(data)
    packed = zlib.compress(data)
    for at in range(0, len(packed), 52):
        piece = packed[at : at + 52]
        # The first character is the length: A to Z for 1 to 26, a to z for 27 to 52.
        size = len(piece) + (64 if len(piece) <= 26 else 70)
        yield bytes((size,)) + base64.b85encode(piece, pad=True) + b"\n"
    yield b"\n"
