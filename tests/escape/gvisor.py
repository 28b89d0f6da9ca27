"""Which tests of hostile programs do not apply to gVisor, each with the reason; docs/runtimes.md tells of them."""

from __future__ import annotations

_SHOWN = "its kernel shows everybody the layout and the names of descriptors of others; none can be opened"
_OBJECTS = "objects of the sandbox's own kernel: its memory bounds them"
_ERRNO = "its kernel does not have the call"
_NOT_TOLD = "its kernel does not tell signals, or options of mounts, among the facts of a process"

_NO_EFFECT = "its kernel lets a program change it for itself, where it has no effect"
_DEVICE = "a device file can be made, as for a device of the sandbox's own kernel, which has none of the machine's"
_SLOW = "its kernel makes so many objects too slowly for the test to end; its memory bounds them"

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
    "test_boxes_at_once_have_a_share_each": _OBJECTS,
    "test_a_busy_neighbour_is_not_taken_for_the_one_with_the_locks": _OBJECTS,
    "test_what_the_kernel_keeps_for_a_box_is_charged_to_it": _SLOW,
    "test_inodes_are_bounded": "its file systems have no limit on files: the box's memory bounds them",
    "test_processes_are_bounded_by_rlimit_too_and_counted_for_the_box_alone": "there that limit is the only one",
    "test_other_addresses_of_the_machine_are_out_of_reach": "they answer EHOSTUNREACH, not ENETUNREACH",
    "test_a_lock_is_seen_by_no_other_box[/dev/null]": "devices have no locks there",
    "test_a_lock_is_seen_by_no_other_box[/dev/zero]": "devices have no locks there",
    "test_a_lock_is_seen_by_no_other_box[/proc/kallsyms]": "its kernel has no such file",
    "test_a_lock_is_not_seen_outside[/dev/null]": "devices have no locks there",
    "test_user_code_has_no_capability[CapAmb]": _NOT_TOLD,
    "test_no_new_privileges_is_set": _NOT_TOLD,
    "test_other_languages_are_confined_too": _NOT_TOLD,
    "test_no_privilege_is_gained[ambient-capability]": "its kernel has no ambient capabilities: EINVAL, not EPERM",
    "test_no_privilege_is_gained[file-capability]": "its file systems have no capabilities: ENOTSUP",
    "test_no_privilege_is_gained[negative-nice]": _NO_EFFECT,
    "test_no_privilege_is_gained[real-time]": "its kernel has no real-time scheduling: EINVAL, not EPERM",
    "test_no_privilege_is_gained[memory-device-node]": _DEVICE,
    "test_no_privilege_is_gained[block-device-node]": _DEVICE,
    "test_no_privilege_is_gained[setgroups-file]": "its kernel has no such file",
    "test_no_privilege_is_gained[oom-score]": _NO_EFFECT,
    "test_a_pidfd_of_the_machine_cannot_be_had": _ERRNO,
    "test_no_process_can_be_inspected_by_force[take-a-descriptor]": _ERRNO,
}


def reason_for(name: str) -> str | None:
    """Why a test, by its name with or without parameters, is not run there."""
    return REASONS.get(name) or REASONS.get(name.partition("[")[0])
