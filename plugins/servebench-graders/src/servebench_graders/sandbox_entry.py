"""Becomes bubblewrap: without root's privileges, and with a folder that holds few files. `sandbox` runs this file by itself.

`python sandbox_entry.py DESCRIPTOR`, of an object in JSON: the `command`, its writable `folder` with the most `bytes` and
`files`, and for root the `user` to become and the `places` that only root can reach.
"""

import ctypes
import json
import os
import sys
from typing import Any

STAGE = "/mnt"
"""Where root shows the unprivileged user an interpreter that only root can reach, in a mount namespace of its own."""
SOURCE = "/dev/shm"  # noqa: S108
"""Where the writable folder is mounted for bubblewrap, which itself cannot limit the number of files. It needs nothing of it."""
NEW_MOUNTS, NEW_USER = 0x20000, 0x10000000
PRIVATE, BIND, NO_DEVICES = 0x44000, 0x1000, 0x4 | 0x2
libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """Call a function of the C library. Raises OSError."""
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def stage(places: list[str]) -> None:
    """Show each place in `STAGE` under its number. Raises OSError."""
    call("unshare", NEW_MOUNTS)
    call("mount", None, b"/", None, PRIVATE, None)
    handles = [os.open(place, os.O_PATH) for place in places]
    call("mount", b"tmpfs", STAGE.encode(), b"tmpfs", 0, b"mode=755")
    for number, handle in enumerate(handles):
        target = f"{STAGE}/{number}"
        if os.path.isdir(f"/proc/self/fd/{handle}"):  # noqa: PTH112 - pathlib is slow to import
            os.mkdir(target)  # noqa: PTH102
        else:
            os.close(os.open(target, os.O_CREAT))
        call("mount", f"/proc/self/fd/{handle}".encode(), target.encode(), None, BIND, None)
        os.close(handle)


def become(user: int) -> None:
    """Give up root's privileges before bubblewrap makes its user namespace: a process that the kernel takes for root may write
    kernel settings whatever its namespace. Raises OSError."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    # who changes users cannot read its own files in /proc, which name the ids of its namespace
    libc.prctl(4, 1, 0, 0, 0)


def mount_folder(size: int, files: int) -> None:
    """Mount a folder for so many bytes and files at `SOURCE`, in namespaces of our own. Raises OSError."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", NEW_USER | NEW_MOUNTS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    options = f"size={size},nr_inodes={files},mode=700"
    call("mount", b"tmpfs", SOURCE.encode(), b"tmpfs", NO_DEVICES, options.encode())


def can_mount(size: int, files: int) -> bool:
    """Return whether a folder can be mounted, tried in a child: where it fails, the namespaces would be bubblewrap's too."""
    child = os.fork()
    if child == 0:
        try:
            mount_folder(size, files)
        except BaseException:  # noqa: BLE001 - the child must not go on as its parent
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def main(settings: dict[str, Any]) -> None:
    """Become the command."""
    command, folder = settings["command"], settings["folder"]
    doing = f"cannot make a mount namespace for {', '.join(settings['places'])}"
    try:
        if settings["places"]:
            stage(settings["places"])
        if settings["user"] is not None:
            doing = f"cannot become the user {settings['user']}"
            become(settings["user"])
        limits = settings["bytes"], settings["files"]
        # without it the folder is there and read-only
        words = ["--dir", folder]
        if can_mount(*limits):
            mount_folder(*limits)
            words = ["--bind", SOURCE, folder]
        place = command.index(folder)
        command[place : place + 1] = words
        doing = f"cannot run {command[0]}"
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        what = "bubblewrap cannot be started" if settings["user"] is None else "root privileges cannot be dropped"
        os.write(2, f"{what}: {doing}: {error.strerror}".encode())
        os._exit(1)


if __name__ == "__main__":
    with open(int(sys.argv[1])) as file:  # noqa: PTH123
        settings = json.load(file)
    main(settings)
