"""What keys and records are made of."""

from __future__ import annotations

from hypothesis import strategies as st

from cowfs.format import audit, records, sessions

U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U32 = st.integers(0, (1 << 32) - 1)
U8 = st.integers(0, 255)
IDS = st.integers(1, (1 << 48) - 1)
EPOCHS = st.integers(0, (1 << 64) - 2)

BYTES_OF_NAMES = sorted(set(range(1, 256)) - {ord("/")})
NAMES = st.lists(st.sampled_from(BYTES_OF_NAMES), min_size=1, max_size=255).map(bytes)
SHORT_NAMES = st.lists(st.sampled_from([1, 2, 97, 98, 255]), min_size=1, max_size=4).map(bytes)
"""Few bytes in few places: one name is often the beginning of another."""

INODES = st.builds(
    records.InodeRecord,
    flags=U8,
    mode=U32,
    nlink=U32,
    uid=U32,
    gid=U32,
    rdev=U64,
    size=U64,
    atime=I64,
    mtime=I64,
    ctime=I64,
    content=U64,
    base_size=U64,
    target=st.binary(max_size=4095),
)
BASES = st.builds(
    records.BaseRecord,
    ino=U64,
    content=U64,
    kind=U8,
    mode=U32,
    dev=U64,
    st_ino=U64,
    size=U64,
    mtime=I64,
    ctime=I64,
)
TEXTS = st.text(max_size=40)
COUNTS = st.builds(records.Counts, U32, U32, U32)
EPOCH_RECORDS = st.builds(
    records.EpochRecord,
    parent=U64,
    run_start=U64,
    branch=TEXTS,
    opened=I64,
    sealed=I64,
    counts=COUNTS,
    checkpoint=TEXTS,
)
CHECKPOINTS = st.builds(
    records.CheckpointRecord,
    id=TEXTS,
    epoch=U64,
    branch=TEXTS,
    kind=TEXTS,
    time=I64,
    message=TEXTS,
    label=TEXTS,
    uid=U32,
    user=TEXTS,
    pid=U32,
    command=TEXTS,
    target=TEXTS,
    counts=COUNTS,
)
OPERATIONS = st.builds(
    records.OperationRecord,
    seq=U64,
    time=I64,
    kind=TEXTS,
    before=U64,
    after=U64,
    checkpoint=TEXTS,
    uid=U32,
    user=TEXTS,
    pid=U32,
    command=TEXTS,
    detail=TEXTS,
)
BRANCHES = st.builds(
    records.BranchRecord,
    name=TEXTS,
    head=U64,
    undo=st.lists(TEXTS, max_size=5).map(tuple),
    redo=st.lists(TEXTS, max_size=5).map(tuple),
    applied=U64,
)
FORMATS = st.builds(
    records.FormatRecord,
    version=U32,
    compatible=U64,
    incompatible=U64,
    uuid=TEXTS,
    created=I64,
    block_size=U32,
)
HISTORY = st.one_of(EPOCH_RECORDS, CHECKPOINTS, OPERATIONS, BRANCHES, FORMATS)
PLACES = st.integers(0, 3)
AUDITS = st.builds(
    audit.AuditRecord,
    epoch=U64,
    time=I64,
    process=U64,
    directories=st.lists(st.binary(max_size=20), max_size=3).map(tuple),
    operations=st.lists(
        st.builds(
            audit.Operation,
            code=U8,
            after=U64,
            ino=U64,
            kind=U8,
            directory=PLACES,
            name=NAMES,
            to_directory=PLACES,
            to_name=NAMES | st.just(b""),
            count=U32,
            size=U64,
            what=U8,
        ),
        max_size=4,
    ).map(tuple),
    detail=TEXTS,
)
PROCESSES = st.builds(
    audit.ProcessRecord,
    pid=U32,
    started=I64,
    uid=U32,
    user=TEXTS,
    name=TEXTS,
    command=st.binary(max_size=40),
    parent=U64,
    session=TEXTS,
    tool=TEXTS,
    outside=st.booleans(),
)

DIGESTS = st.binary(min_size=32, max_size=32)
PATHS = st.binary(max_size=60)
SESSIONS = st.builds(
    sessions.SessionRecord,
    id=TEXTS,
    agent=TEXTS,
    state=TEXTS,
    started=I64,
    last=I64,
    ended=I64,
    reason=TEXTS,
    parent=TEXTS,
    kind=TEXTS,
    uid=U32,
    user=TEXTS,
    pid=U32,
    born=U64,
    boot=TEXTS,
    cwd=PATHS,
    transcript=PATHS,
    title=TEXTS,
    prompt=TEXTS,
    prompt_id=TEXTS,
    version=TEXTS,
    origin=TEXTS,
    files=st.lists(U64, max_size=4).map(tuple),
)
TRANSCRIPTS = st.builds(
    sessions.TranscriptRecord,
    session=TEXTS,
    name=TEXTS,
    path=PATHS,
    kind=TEXTS,
    length=U64,
    hash=DIGESTS,
    tail=st.binary(max_size=256),
)
CONTEXTS = st.builds(
    sessions.ContextRecord,
    session=TEXTS,
    event=TEXTS,
    prompt=TEXTS,
    prompt_id=TEXTS,
    tool=st.builds(sessions.ToolCall, TEXTS, TEXTS, TEXTS),
    cwd=PATHS,
    marks=st.lists(st.builds(sessions.Mark, U64, U64, DIGESTS), max_size=3).map(tuple),
    complete=st.booleans(),
    background=U32,
    environment=st.lists(st.tuples(TEXTS, TEXTS), max_size=3).map(tuple),
    hidden=st.lists(TEXTS, max_size=3).map(tuple),
    processes=st.lists(
        st.builds(sessions.RunningProcess, U32, U32, I64, PATHS, PATHS), max_size=2
    ).map(tuple),
    files=st.lists(st.builds(sessions.OpenFile, U32, U32, U64, PATHS, U64, U32), max_size=2).map(
        tuple
    ),
    ports=st.lists(st.builds(sessions.ListeningPort, TEXTS, TEXTS, U32, U32), max_size=2).map(
        tuple
    ),
    locks=st.lists(
        st.builds(sessions.FileLock, U32, U64, PATHS, TEXTS, TEXTS, I64, I64), max_size=2
    ).map(tuple),
    missing=st.lists(TEXTS, max_size=2).map(tuple),
    leaf=TEXTS,
)
