"""Which tests of hostile programs do not apply to gVisor, each with the reason; docs/runtimes.md tells of them.

What stands in their place is in ``tests/gvisor/test_kernel.py``.
"""

from __future__ import annotations

_OBJECTS = "objects of the sandbox's own kernel have no limit of their own: its memory bounds them"

REASONS = {
    "test_a_box_gets_its_share_and_no_more[inotify instances]": _OBJECTS,
    "test_a_box_gets_its_share_and_no_more[inotify watches]": _OBJECTS,
    "test_a_box_gets_its_share_and_no_more[message queues]": _OBJECTS,
    "test_a_box_gets_its_share_and_no_more[terminals]": _OBJECTS,
    "test_a_box_gets_its_share_and_no_more[timers]": _OBJECTS,
    "test_locks_without_end_end_a_box": _OBJECTS,
    "test_a_busy_neighbour_is_not_taken_for_the_one_with_the_locks": _OBJECTS,
    "test_what_the_kernel_keeps_for_a_box_is_charged_to_it": "none of its processes is one of the machine's",
    "test_inodes_are_bounded": "its file systems have no limit on files: its memory bounds them",
    "test_programs_die_before_init_when_memory_is_short": "the machine knows of one process, the sandbox's kernel",
}


def reason_for(name: str) -> str | None:
    """Why a test, by its name with or without parameters, is not run there."""
    return REASONS.get(name) or REASONS.get(name.partition("[")[0])
