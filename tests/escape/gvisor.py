"""Which tests of hostile programs do not apply to gVisor, each with the reason; docs/runtimes.md tells of them."""

from __future__ import annotations

_SHOWN = "its kernel shows everybody the layout and the names of descriptors of others; none can be opened"
_OBJECTS = "objects of the sandbox's own kernel: its memory bounds them"
_ERRNO = "its kernel does not have the call"
_NOT_TOLD = "its kernel does not tell signals, or options of mounts, among the facts of a process"

REASONS = {
    "test_parts_of_proc_about_the_machine_are_masked[cmdline]": "the command line is that of the sandbox's own kernel",
    "test_device_files_are_dead_on_every_mount_but_dev": _NOT_TOLD,
    "test_no_signal_is_blocked": _NOT_TOLD,
    "test_a_shell_ignores_no_signal": _NOT_TOLD,
    "test_there_is_no_terminal_to_write_to": "without a terminal its /dev/tty answers EIO, not ENXIO",
    "test_init_cannot_be_read[environ]": _SHOWN,
    "test_init_cannot_be_read[maps]": _SHOWN,
    "test_init_cannot_be_read[smaps]": _SHOWN,
    "test_init_cannot_be_read[auxv]": _SHOWN,
    "test_init_cannot_be_read[fdinfo]": _SHOWN,
    "test_no_link_of_init_can_be_followed[fd/0]": _SHOWN,
    "test_no_link_of_init_can_be_followed[fd/3]": _SHOWN,
    "test_no_link_of_init_can_be_followed[ns/mnt]": _SHOWN,
    "test_no_link_of_init_can_be_followed[ns/user]": _SHOWN,
    "test_init_cannot_be_opened_by_force[take-descriptor]": _ERRNO,
    "test_init_cannot_be_opened_by_force[advise-memory]": _ERRNO,
    "test_init_cannot_be_opened_by_force[release-memory]": _ERRNO,
    "test_init_cannot_be_opened_by_force[robust-futexes]": _ERRNO,
    "test_init_outlives_thousands_of_orphans": "a process takes it ten times as long to start as it takes the machine",
    "test_a_box_gets_its_share_and_no_more[message queues]": _OBJECTS,
    "test_a_box_gets_its_share_and_no_more[timers]": _OBJECTS,
    "test_locks_without_end_end_a_box": _OBJECTS,
}


def reason_for(name: str) -> str | None:
    """Why a test, by its name with or without parameters, is not run there."""
    return REASONS.get(name) or REASONS.get(name.partition("[")[0])
