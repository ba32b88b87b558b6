"""G07: the socket's file, whatever lies where it shall be."""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.errors import BadConfig
from edged.transports import unix


@pytest.fixture
def path() -> Iterator[str]:
    """A short path in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="edged-") as folder:
        yield f"{folder}/s"


def answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def leave_dead_socket(path: str) -> None:
    """What a server leaves that was killed."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()


def test_listens_and_removes_its_file(path: str) -> None:
    listener = unix.listen(path, mode="0640")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o640
    assert answers(path)
    listener.close()
    assert not os.path.lexists(path)
    listener.close()  # idempotent


def test_mode_does_not_depend_on_the_umask(path: str) -> None:
    old = os.umask(0o777)
    try:
        listener = unix.listen(path, mode="0666")
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    listener.close()


def test_group(path: str) -> None:
    group = grp.getgrgid(os.getgid())
    for name in (group.gr_name, str(group.gr_gid)):
        listener = unix.listen(path, group=name)
        assert os.stat(path).st_gid == group.gr_gid
        listener.close()


@pytest.mark.parametrize("settings", [{"mode": "rw"}, {"mode": "1777"}, {"mode": "-1"}, {"group": "no such group"}])
def test_bad_settings(path: str, settings: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match=r"server\."):
        unix.listen(path, **settings)
    assert not os.path.lexists(path)


def test_g07_dead_socket_is_replaced(path: str) -> None:
    leave_dead_socket(path)
    listener = unix.listen(path)
    assert answers(path)
    listener.close()


def test_g07_killed_server_is_replaced(path: str) -> None:
    code = "import os, sys; from edged.transports import unix; unix.listen(sys.argv[1]); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, path], check=False)
    assert os.path.lexists(path)
    unix.listen(path).close()


def test_g07_live_socket_is_not_stolen(path: str) -> None:
    first = unix.listen(path)
    with pytest.raises(BadConfig, match="another process") as caught:
        unix.listen(path)
    assert caught.value.code == "socket_in_use"
    assert answers(path)
    first.close()


def test_g07_full_backlog_is_alive(path: str) -> None:
    """A server too busy to accept is not dead."""
    first = unix.listen(path, backlog=0)
    clients = []
    while True:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        clients.append(client)
        if client.connect_ex(path) == errno.EAGAIN:
            break
    with pytest.raises(BadConfig, match="another process"):
        unix.listen(path)
    for client in clients:
        client.close()
    first.close()


@pytest.mark.parametrize("kind", ["file", "folder", "link to a dead socket", "link to nothing", "pipe"])
def test_g07_what_is_no_socket_is_left_alone(path: str, kind: str) -> None:
    if kind == "file":
        Path(path).write_text("precious")
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        if kind == "link to a dead socket":
            leave_dead_socket(path + "2")
        os.symlink(path + "2", path)
    before = os.lstat(path)
    with pytest.raises(BadConfig, match="not a socket") as caught:
        unix.listen(path)
    assert caught.value.code == "socket_path"
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def test_g07_long_path(path: str) -> None:
    folder = os.path.dirname(path)
    longest = folder + "/" + "s" * (unix.MAX_PATH - len(folder) - 1)
    unix.listen(longest).close()
    for too_long in (longest + "s", longest + "s" * 100, ""):
        with pytest.raises(BadConfig, match=f"{len(too_long)} bytes, 1 to 107"):
            unix.listen(too_long)


def test_missing_folder(path: str) -> None:
    with pytest.raises(BadConfig, match="No such file or directory"):
        unix.listen(path + "/missing/s")


def test_closing_does_not_need_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    ours = unix.listen(str(folder / "s"))
    shutil.rmtree(folder)
    ours.close()
    assert ours.socket.fileno() == -1


def test_file_of_another_is_not_removed(path: str) -> None:
    """Someone removed our file and bound their own: closing ours leaves theirs."""
    ours = unix.listen(path)
    os.unlink(path)
    theirs = unix.listen(path)
    ours.close()
    assert answers(path)
    theirs.close()


def test_servers_that_start_at_once(path: str) -> None:
    """One of many gets the socket, the others are told so, and it answers."""
    leave_dead_socket(path)
    results: list[object] = []

    def start() -> None:
        try:
            results.append(unix.listen(path))
        except BadConfig as error:
            results.append(error.code)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [result for result in results if isinstance(result, unix.Listener)]
    assert len(winners) == 1
    assert results.count("socket_in_use") == 7
    assert answers(path)
    winners[0].close()


def test_folder_locked_by_another(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix, "LOCK_WAIT", 0.0)
    fd = os.open(os.path.dirname(path), os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(BadConfig, match="locked by another process"):
        unix.listen(path)
    os.close(fd)
    unix.listen(path).close()


def test_socket_of_systemd(path: str) -> None:
    """sd_listen_fds(3): the socket is used, kept at the end, and children do not see the variables."""
    code = """if True:
        import os, sys
        from edged.transports import unix
        os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "edged.socket"}
        listener = unix.activated(os.environ)
        assert listener.path == sys.argv[1], listener.path
        assert not any(name.startswith("LISTEN_") for name in os.environ)
        assert not os.get_inheritable(listener.socket.fileno())
        listener.socket.setblocking(True)
        listener.socket.accept()
        listener.close()
    """
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(path)
        server.listen()
        client.connect(path)
        run = f"os.execv({sys.executable!r}, {['python', '-c', code, path]})"
        setup = f"import os; os.dup2({server.fileno()}, 3); {run}"
        subprocess.run([sys.executable, "-c", setup], check=True, pass_fds=[server.fileno()])
    assert os.path.lexists(path)


@pytest.mark.parametrize("environ", [{}, {"LISTEN_PID": "1", "LISTEN_FDS": "1"}, {"LISTEN_PID": str(os.getpid())}])
def test_no_socket_of_systemd(environ: dict[str, str]) -> None:
    assert unix.activated(environ) is None
    assert environ == {}


def test_several_sockets_of_systemd() -> None:
    with pytest.raises(BadConfig, match="2 sockets"):
        unix.activated({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})
