"""Builds on a mount: after a restore, make finds exactly what has to be built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.mounting import Mounted
from tests.tools.tool import need, run

UNITS = 20
_OLD = 1_500_000_000
_MAKEFILE = """\
objects := $(patsubst %.c,%.o,$(wildcard src/*.c))
program: $(objects)
\t@echo linking
\t@gcc -o $@ $^
%.o: %.c
\t@echo compiling $(notdir $<)
\t@gcc -MMD -c -o $@ $<
-include $(objects:.o=.d)
"""


class Project:
    """A C program of `UNITS` numbers that are added up; units 7 and 8 include a header."""

    def __init__(self, top: Path, env: dict[str, str]) -> None:
        self.top = top
        self.env = env
        (top / "src").mkdir()
        self._write("Makefile", _MAKEFILE)
        self.header(0)
        for number in range(UNITS):
            self.unit(number, number)
        declared = "".join(f"int f{n}(void);" for n in range(UNITS))
        added = "+".join(f"f{n}()" for n in range(UNITS))
        self._write(
            "src/main.c",
            f'#include <stdio.h>\n{declared}\nint main() {{ printf("%d\\n", {added}); }}\n',
        )
        # As in a project that was there long before it is built.
        for path in [top / "Makefile", *(top / "src").iterdir()]:
            os.utime(path, (_OLD, _OLD))

    def _write(self, path: str, text: str) -> None:
        (self.top / path).write_text(text)

    def unit(self, number: int, value: int) -> None:
        """Write one unit."""
        head = '#include "extra.h"\n' if number in (7, 8) else "#define EXTRA 0\n"
        self._write(
            f"src/f{number}.c", f"{head}int f{number}(void) {{ return {value} + EXTRA; }}\n"
        )

    def header(self, value: int) -> None:
        """Write the header; it adds twice its value to the sum."""
        self._write("src/extra.h", f"#define EXTRA {value}\n")

    def make(self) -> set[str]:
        """Build; what was compiled, and "program" if that was linked."""
        built = set()
        for line in run(["make", "-j2", "program"], self.top, self.env).splitlines():
            if line.startswith("compiling "):
                built.add(line.removeprefix("compiling ").removesuffix(".c"))
            elif line == "linking":
                built.add("program")
            else:
                assert line == "make: 'program' is up to date.", line
        return built

    def result(self) -> int:
        return int(run([self.top / "program"], self.top, self.env))


EVERYTHING = {"program", "main", *(f"f{n}" for n in range(UNITS))}
SUM = UNITS * (UNITS - 1) // 2


@pytest.fixture
def project(top: Path, env: dict[str, str]) -> Project:
    need("make")
    need("gcc")
    return Project(top, env)


def test_make_after_restores(workspace: Mounted, project: Project) -> None:
    sources = workspace.checkpoint("before the first build")
    assert project.make() == EVERYTHING
    assert project.result() == SUM
    assert project.make() == set()
    built = workspace.checkpoint("built")

    for number in (1, 5, 9):
        project.unit(number, 100)
    edited = workspace.checkpoint("edited, not built")
    assert project.make() == {"f1", "f5", "f9", "program"}
    assert project.result() == SUM + 300 - (1 + 5 + 9)
    rebuilt = workspace.checkpoint("edited and built")

    workspace.restore(built)
    assert project.make() == set()
    assert project.result() == SUM
    project.unit(3, 50)
    project.header(1000)
    assert project.make() == {"f3", "f7", "f8", "program"}
    assert project.result() == SUM + 50 - 3 + 2000

    workspace.restore(edited)
    assert project.make() == {"f1", "f5", "f9", "program"}
    workspace.restore(rebuilt)
    assert project.make() == set()
    assert project.result() == SUM + 300 - (1 + 5 + 9)

    workspace.restore(sources)
    assert not (project.top / "program").exists()
    assert project.make() == EVERYTHING
    assert project.result() == SUM
    workspace.call("undo")
    assert project.make() == set()
    assert project.result() == SUM + 300 - (1 + 5 + 9)


def test_a_source_alone_restored(workspace: Mounted, project: Project) -> None:
    """A file that a partial restore brings back is as old as it was; its object must go back
    with it, and with both nothing is built but the program."""
    assert project.make() == EVERYTHING
    built = workspace.checkpoint()
    project.unit(4, 40)
    project.unit(6, 60)
    assert project.make() == {"f4", "f6", "program"}
    workspace.call(
        "restore", checkpoint=built, paths=["src/f4.c", "src/f4.o", "src/f4.d", "program"]
    )
    assert project.make() == {"program"}
    assert project.result() == SUM + 60 - 6
