"""The SQLite file below a store: opened, read and written, with every error by name.

    database = Database(path)
    database.rows("SELECT path FROM documents WHERE product = ?", ["QV 310"])
    with database.write():
        database.run("DELETE FROM documents WHERE id = ?", [7])

The one place that knows sqlite3's errors: BadStore for damage and for what may not be read, OtherStore, DiskFull, Busy
after TIMEOUT seconds, NotFound for no file, BadRequest for a value that SQLite cannot hold. A write that fails leaves
the file as it was. Write-ahead log: who reads sees the last whole state while another process writes.
"""

from __future__ import annotations

import resource
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edged.errors import BadRequest, BadStore, Busy, DiskFull, EdgedError, NotFound, OtherStore

APPLICATION = 0x65646764  # PRAGMA application_id: "edgd"
VERSION = 2  # PRAGMA user_version: of the tables that schema.py makes
OLDEST_SQLITE = (3, 31)
TIMEOUT = 60  # seconds that a writer waits for another
PAGE = 65536  # bytes; long values are read faster than with 4096
LOG = 16 << 20  # bytes of the log from which on they are moved to the file; what is longer is given back
RESTORE = "restore a copy, or delete it and ingest the manuals again"
_VERSION_1 = {"meta", "contents", "documents", "chunks", "vectors", "blocks"}  # its tables; it had no application_id
_SPARE = 1 << 20  # a disk with fewer free bytes is full, whatever the error says


class Database:
    """An open file; one thread uses it. New ones are empty, see schema.py."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Open; with `create` make a file that is missing or empty, and its folder."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise BadStore(f"SQLite {sqlite3.sqlite_version} is too old", hint="the store needs SQLite 3.31 or newer")
        self.path = path
        try:
            size = path.stat().st_size if path.exists() else 0
            if not size and not create:
                raise NotFound(f"no store of manuals at {path}", hint="edged ingest FOLDER makes one")
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise BadStore(f"{e.filename}: {e.strerror}", hint="name a store in a folder that this user may use") from e
        with self._named():
            uri = f"{path.resolve().as_uri()}?mode={'rwc' if create else 'rw'}"
            self.connection = sqlite3.connect(uri, uri=True, timeout=TIMEOUT, isolation_level=None)
            try:
                self._settle(new=not size)
            except BaseException:
                self.connection.close()
                raise

    def _settle(self, new: bool) -> None:
        """Set the connection up; takes no lock unless the file is new. Another program's file is not touched."""
        db = self.connection
        if new:
            db.execute(f"PRAGMA page_size = {PAGE}")
        self.look()
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(f"PRAGMA wal_autocheckpoint = {LOG // PAGE}")
        db.execute(f"PRAGMA journal_size_limit = {LOG}")
        patience = time.monotonic() + TIMEOUT
        while db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:  # SQLite does not wait here for another process that does the same
                db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or time.monotonic() > patience:
                    raise
                time.sleep(0.01)

    def look(self) -> int:
        """Set `version` to that of the tables as they are now, 0 if there are none."""
        tables = {row[0] for row in self.connection.execute("SELECT name FROM sqlite_master")}
        application = self.connection.execute("PRAGMA application_id").fetchone()[0]
        version = int(self.connection.execute("PRAGMA user_version").fetchone()[0])
        if tables and application != APPLICATION and not (application == 0 and version == 1 and tables >= _VERSION_1):
            raise OtherStore(f"{self.path} is a database of another program", hint="name another file as the store")
        self.version = version if tables else 0
        return self.version

    def check_version(self) -> None:
        """Raise OtherStore unless this edged reads the file."""
        if self.version < VERSION:
            raise OtherStore(f"{self.path} has version {self.version}, this edged reads version {VERSION}",
                             hint="edged store migrate")
        if self.version > VERSION:
            raise OtherStore(f"{self.path} has version {self.version}, this edged reads version {VERSION}",
                             hint="install the newer edged that wrote it")

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    # -- reading -------------------------------------------------------------------------------------------------------

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._named():
            return self.connection.execute(sql, values).fetchall()

    def row(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        with self._named():
            found: tuple[Any, ...] | None = self.connection.execute(sql, values).fetchone()
            return found

    def number(self, sql: str, values: Sequence[Any] = ()) -> int:
        """The one number that a query gives."""
        with self._named():
            return int(self.connection.execute(sql, values).fetchone()[0])

    def blob(self, table: str, column: str, row: int) -> bytes:
        """A value; as a blob it is copied once, in a row of a result twice."""
        with self._named():
            if hasattr(self.connection, "blobopen"):  # from Python 3.11 on
                with self.connection.blobopen(table, column, row, readonly=True) as blob:
                    return blob.read()
            found = self.connection.execute(f"SELECT {column} FROM {table} WHERE rowid = ?", [row]).fetchone()
            return bytes(found[0])

    def readable(self, table: str) -> bool:
        """Whether there is such a table, and this SQLite has the module that reads it."""
        with self._named():
            try:
                self.connection.execute(f"SELECT 1 FROM {table} LIMIT 1")
            except sqlite3.OperationalError as e:
                if "no such" not in str(e):
                    raise
                return False
            return True

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads within see one state of the file, whatever is written meanwhile."""
        self.run("BEGIN")
        try:
            yield
        finally:
            if self.connection.in_transaction:  # an error may have ended it
                self.run("COMMIT")

    # -- writing -------------------------------------------------------------------------------------------------------

    @contextmanager
    def write(self) -> Iterator[None]:
        """One transaction; waits for another writer, is undone by any exception."""
        with self._named():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite itself undoes some
                    self.connection.execute("ROLLBACK")
                raise

    def run(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; how many rows it changed."""
        with self._named():
            return self.connection.execute(sql, values).rowcount

    def run_many(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each of the values."""
        with self._named():
            self.connection.executemany(sql, values)

    # -- errors --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as e:
            raise self._error(e) from e
        except (UnicodeEncodeError, OverflowError) as e:
            raise BadRequest(f"the store cannot hold this value: {e}") from e

    def _error(self, error: sqlite3.Error) -> EdgedError:
        """What went wrong, and what to do about it; before Python 3.11 only the text tells."""
        text = str(error)
        if "locked" in text:
            return Busy(f"{self.path}: another process has been writing for {TIMEOUT} s", hint="try again later")
        if "disk is full" in text or ("disk I/O error" in text and self._is_full()):
            return DiskFull(f"no room on the disk to write {self.path}; it is as it was before",
                            hint="free some space, then do the same again: what is there is not done twice")
        if "disk I/O error" in text:
            return BadStore(f"{self.path}: {text}", hint="the disk or card may be failing: look at dmesg, save a copy")
        if "unable to open" in text or "readonly" in text:
            return BadStore(f"{self.path}: {text}",
                            hint="this user must be allowed to read and write the file and its folder")
        if "malformed" in text or "not a database" in text:
            return BadStore(f"{self.path} is damaged or no store: {text}", hint=RESTORE)
        return BadStore(f"{self.path}: {text}", hint="edged store check")

    def _is_full(self) -> bool:
        """Whether a write failed for lack of room: of the disk, or because no file may be longer (RLIMIT_FSIZE)."""
        try:
            if shutil.disk_usage(self.path.parent).free < _SPARE:
                return True
            longest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            files = [self.path, self.path.with_name(self.path.name + "-wal")]
            sizes = [file.stat().st_size for file in files if file.exists()]
        except OSError:
            return False
        return longest != resource.RLIM_INFINITY and max(sizes, default=0) + 2 * PAGE > longest
