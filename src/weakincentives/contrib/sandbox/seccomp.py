"""System calls that no command needs and attacks on kernels begin with: denied in both backends.

Podman gets the system's own list of allowed calls, shortened. bubblewrap gets a program for the kernel that refuses them;
mounts and namespaces it refuses already, by taking every capability and disabling user namespaces.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

_PROFILES = ("/etc/containers/seccomp.json", "/usr/share/containers/seccomp.json")
_NAMESPACES = frozenset(
    (
        "clone",
        "clone3",
        "fsconfig",
        "fsmount",
        "fsopen",
        "fspick",
        "mount",
        "mount_setattr",
        "move_mount",
        "open_tree",
        "pivot_root",
        "setns",
        "umount",
        "umount2",
        "unshare",
    )
)
# Numbers on x86_64 and on aarch64.
_DOORS = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_PLAIN_CLONE = {
    "names": ["clone"],
    "action": "SCMP_ACT_ALLOW",
    # Without any of the flags that make a namespace. clone3 hides its flags, so it is answered with "unknown call".
    "args": [{"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
}
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 38  # ENOSYS: what a program is told by a kernel that has no such call


def shortened_profile() -> str:
    """The system's list for Podman as JSON, without what is denied; empty where there is no such list."""
    if os.uname().machine not in _MACHINES:  # elsewhere the arguments of clone stand in another order
        return ""
    for path in _PROFILES:
        try:
            with open(path, encoding="utf-8") as file:
                profile: Any = json.load(file)
            for rule in profile["syscalls"]:
                if rule["action"] == "SCMP_ACT_ALLOW":
                    rule["names"] = [name for name in rule["names"] if name not in _NAMESPACES and name not in _DOORS]
            profile["syscalls"] = [rule for rule in profile["syscalls"] if rule["names"]] + [_PLAIN_CLONE]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return json.dumps(profile)
    return ""


def filter_program() -> bytes:
    """The program for bubblewrap: refuses what is denied, and every call by another convention; empty on other machines."""
    found = _MACHINES.get(os.uname().machine)
    if found is None:
        return b""
    column, architecture = found
    numbers = [pair[column] for pair in _DOORS.values()]
    # Each step: what, how far to jump if so, how far if not, with what. The last two are the two answers.
    refuse = 4 + len(numbers) + 1
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 0, refuse - 2, architecture),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, refuse - 4, 0, _X32),
    ]
    steps += [(_EQUAL, refuse - at - 1, 0, number) for at, number in enumerate(numbers, 4)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
