"""This process's control groups: what may limit its processor time and its memory.

    for folder, v2 in folders(root, "cpu"): read(folder / "cpu.max")

Source: Linux, admin-guide/cgroup-v2.rst, cgroup-v1/cgroups.rst, proc_pid_mountinfo(5).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath


def folders(root: str, controller: str) -> Iterator[tuple[PurePosixPath, bool]]:
    """Folders of this process's group and of each above it, as far as they are visible; whether each is of v2.

    root: prefix of /proc and /sys, for tests; it is put before the folders given.
    """
    for folder, mount, v2 in _hierarchies(root, controller):
        while True:
            yield PurePosixPath(f"{root}{folder}"), v2
            if folder == mount:
                break
            folder = folder.parent


def read(path: str | PurePosixPath) -> str:
    """The text of a file of /proc or /sys; empty if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _hierarchies(root: str, controller: str) -> Iterator[tuple[PurePosixPath, PurePosixPath, bool]]:
    """Hierarchies of a controller: this process's folder, where the hierarchy is mounted, whether it is v2."""
    own: dict[str, str] = {}  # controller ("" for v2) -> path of the cgroup in its hierarchy
    for line in read(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, where = line.split(":", 2)
        own.update((name, where) for name in controllers.split(","))
    for line in read(f"{root}/proc/self/mountinfo").splitlines():
        # id parent major:minor root mountpoint options tags... - fstype source superoptions
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup2":
            found = ""
        elif kind == "cgroup" and controller in options.split(","):
            found = controller
        else:
            continue
        if found not in own:
            continue
        top, mount = (PurePosixPath(_unescape(field)) for field in left.split(" ")[3:5])
        path = PurePosixPath(own[found])
        # In a container the mounted root may be the container's cgroup while `path` is the host's, or the reverse.
        below = path.relative_to(top) if path.is_relative_to(top) else PurePosixPath()
        yield mount / below, mount, not found


def _unescape(field: str) -> str:
    """mountinfo writes space, tab, newline and backslash as octal."""
    return field.encode().decode("unicode_escape") if "\\" in field else field
