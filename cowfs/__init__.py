"""cowfs: a copy-on-write workspace filesystem that records every change.

For programs: `from cowfs import Workspace` (docs/api.md).

The package imports nothing at this level: hooks and `cowfs checkpoint` start in
milliseconds only while `import cowfs` stays free. What it exports is imported when it is used.
"""

__version__ = "0.1.0"

__all__ = [
    "Activity",
    "AsyncWorkspace",
    "Change",
    "Checkpoint",
    "Context",
    "Counts",
    "CowfsError",
    "Diff",
    "File",
    "Patch",
    "Preview",
    "Process",
    "Restored",
    "Session",
    "Status",
    "Unmounted",
    "Workspace",
    "__version__",
]

_ELSEWHERE = {
    "AsyncWorkspace": "cowfs.api.asynchronous",
    "CowfsError": "cowfs.errors",
    "Workspace": "cowfs.api.workspace",
}
"""The modules of what is not in `cowfs.api.results`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cowfs.api.asynchronous import AsyncWorkspace
    from cowfs.api.results import (
        Activity,
        Change,
        Checkpoint,
        Context,
        Counts,
        Diff,
        File,
        Patch,
        Preview,
        Process,
        Restored,
        Session,
        Status,
        Unmounted,
    )
    from cowfs.api.workspace import Workspace
    from cowfs.errors import CowfsError
else:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'cowfs' has no attribute {name!r}")
        from importlib import import_module

        found: object = getattr(import_module(_ELSEWHERE.get(name, "cowfs.api.results")), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
