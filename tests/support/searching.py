"""Hypothesis' search with the state machines: short in the suite and always the same; longer, and
with other examples, by environment variables. `scripts/fuzz` sets them.

COWFS_FUZZ_EXAMPLES: how many examples. COWFS_FUZZ_STEPS: in each. COWFS_FUZZ_SHRINK=0: a failure
is printed at once, else Hypothesis makes it smaller first, for up to five minutes.

A long search has no time limit: pytest's would fail in the middle of an example, and Hypothesis
would take that for what it looks for and try to make it smaller. A short one that comes near to the
limit, which on a machine with much to do is five times what it takes alone, is made in parts.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, get_state_machine_test

EXAMPLES = int(os.environ.get("COWFS_FUZZ_EXAMPLES", "0"))
"""Of a longer search; 0 in the suite."""
_STEPS = int(os.environ.get("COWFS_FUZZ_STEPS", "0"))
_SHRINK = os.environ.get("COWFS_FUZZ_SHRINK", "1") != "0"

WITHOUT_LIMIT = [pytest.mark.timeout(0)] if EXAMPLES else []
"""`pytestmark` of a module with a state machine."""


def parts(most: int) -> range:
    """The numbers of the parts of a search; a longer search is in one."""
    return range(1 if EXAMPLES else most)


def search(
    machine: Callable[..., RuleBasedStateMachine],
    *arguments: object,
    examples: int,
    steps: int,
    part: int = 0,
) -> None:
    """Run a machine, which is made with `arguments`: in the suite so many examples of so many
    steps, others in each part."""
    phases = [Phase.generate]
    if EXAMPLES:
        faulthandler.cancel_dump_traceback_later()  # what `faulthandler_timeout` began
        phases += [Phase.shrink, Phase.explain] if _SHRINK else []
    # Anything that makes one will do; the annotation is narrower.
    factory = cast("type[RuleBasedStateMachine]", lambda: machine(*arguments))
    test = get_state_machine_test(
        factory,
        settings=settings(
            max_examples=EXAMPLES or examples,
            stateful_step_count=_STEPS or steps,
            phases=phases,
            derandomize=not EXAMPLES,
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    if not EXAMPLES:
        test = seed(part)(test)
    test()
