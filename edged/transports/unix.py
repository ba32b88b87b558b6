"""The Unix socket: made without a race, never stolen from a living server, never left behind.

`listen(...)` returns a `Listener`; `Listener.close()` closes it and removes its file if the file is still its own.

What lies at the path decides:

    nothing                      -> bind
    socket nobody listens on     -> remove it, bind (a server was killed)
    socket that answers          -> BadConfig "socket_in_use"
    file, directory, symlink...  -> BadConfig "socket_path": only sockets are ever removed

Two servers that start at once are put in order by a lock on the directory, which leaves no lock file behind.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from edged.errors import BadConfig

MAX_PATH = 107
"""Bytes of a socket path: sun_path of unix(7) has 108, the last is NUL."""

LOCK_WAIT = 5.0
"""Seconds to wait for another server that is just starting or stopping."""

ACTIVATED_FD = 3
"""SD_LISTEN_FDS_START of sd_listen_fds(3)."""


@dataclass
class Listener:
    """A listening socket. `identity`: (device, inode) of its file, None where the file belongs to systemd."""

    socket: socket.socket
    path: str
    identity: tuple[int, int] | None = None

    def close(self) -> None:
        """Stop listening and remove the socket's file, unless another has taken its place. Idempotent."""
        if self.identity is not None:
            with suppress(OSError), _lock(Path(self.path).parent):  # its folder may be gone, and the file with it
                self.remove()
        self.socket.close()

    def remove(self) -> None:
        """Only remove the file, without waiting for the lock: for a process that ends at once."""
        if self.identity is not None and _identity(self.path) == self.identity:
            os.unlink(self.path)
        self.identity = None


def listen(path: str, *, mode: str = "0660", group: str = "", backlog: int = 1024) -> Listener:
    """Bind and listen on `path`. Raises BadConfig with the path and the reason."""
    if not path or len(os.fsencode(path)) > MAX_PATH:
        raise BadConfig(f"the socket path has {len(os.fsencode(path))} bytes, 1 to {MAX_PATH} are possible: {path!r}",
                        hint="choose a shorter path, such as one in /run", code="socket_path")
    bits = _mode(mode)
    owner = _group_id(group) if group else -1
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with _lock(Path(path).parent):
            _clear(path)
            # Linux gives the file the mode of the socket it is bound to: it is never more open than this
            os.fchmod(server.fileno(), 0o600)
            server.bind(path)
            try:
                os.chown(path, -1, owner)
                os.chmod(path, bits)
                server.listen(backlog)
            except OSError:
                os.unlink(path)
                raise
            return Listener(server, path, _identity(path))
    except OSError as error:
        server.close()
        raise BadConfig(f"{path}: {error.strerror}", code="socket_path") from error
    except BadConfig:
        server.close()
        raise


def activated(environ: MutableMapping[str, str]) -> Listener | None:
    """The socket that systemd listens on for us (sd_listen_fds(3)), None without one. Clears its variables.

    Raises BadConfig if there are several, or one that is not a Unix stream socket.
    """
    pid, count = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count in ("", "0"):
        return None
    if count != "1":
        raise BadConfig(f"systemd passed {count} sockets, 1 is used", code="socket_path")
    server = socket.socket(fileno=ACTIVATED_FD)
    if server.family != socket.AF_UNIX or server.type != socket.SOCK_STREAM:
        raise BadConfig("the socket passed by systemd is not a Unix stream socket", code="socket_path")
    server.setblocking(False)
    os.set_inheritable(server.fileno(), False)
    return Listener(server, server.getsockname())


def _clear(path: str) -> None:
    """Make room at `path`, or say why not."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BadConfig(f"{path}: exists and is {_kind(found.st_mode)}, not a socket",
                        hint="move it away or choose another path; edged removes nothing but dead sockets",
                        code="socket_path")
    if _answers(path):
        raise BadConfig(f"{path}: another process listens on this socket",
                        hint="stop it or choose another path", code="socket_in_use")
    os.unlink(path)


def _answers(path: str) -> bool:
    """Whether anybody listens: only a refused connection is proof that nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        return probe.connect_ex(path) not in (errno.ECONNREFUSED, errno.ENOENT)


def _kind(mode: int) -> str:
    names = ((stat.S_ISLNK, "a symbolic link"), (stat.S_ISDIR, "a directory"), (stat.S_ISREG, "a file"))
    return next((name for test, name in names if test(mode)), "a special file")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + LOCK_WAIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BadConfig(f"{directory}: locked by another process for {LOCK_WAIT:.0f} seconds",
                                    code="socket_in_use") from None
                time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def _mode(text: str) -> int:
    try:
        bits = int(text, 8)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o777:
        raise BadConfig(f"server.mode: {text!r} is not an octal mode such as 0660")
    return bits


def _group_id(name: str) -> int:
    import grp

    try:
        return int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise BadConfig(f"server.group: there is no group {name!r}") from None
