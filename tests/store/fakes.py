"""A web server in a thread that serves files with the faults a real network has, and a package index on it."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """One path. `cuts`: number of body bytes after which each of the first requests is cut off."""

    body: bytes
    content_type: str = "application/octet-stream"
    etag: str = ""
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)  # what the first requests get instead
    redirect: str = ""


class Web:
    """`files` by path; `requests` as (path, Range header, Authorization header)."""

    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.requests: list[tuple[str, str, str]] = []
        self.url = ""

    def package(self, name: str, version: str, members: dict[str, bytes], *, html: bool = False,
                sha256: str | None = None) -> Served:
        """Add a wheel and its index page; the wheel's Served."""
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as wheel:
            for path, body in members.items():
                wheel.writestr(path, body)
        filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        digest = hashlib.sha256(data.getvalue()).hexdigest() if sha256 is None else sha256
        if html:
            page = Served(f'<a href="../../files/{filename}#sha256={digest}">{filename}</a>'.encode(), "text/html")
        else:
            other = {"filename": f"{name}-{version}.tar.gz", "url": "../../files/none", "hashes": {}}
            wheel_row = {"filename": filename, "url": f"../../files/{filename}", "hashes": {"sha256": digest},
                         "size": len(data.getvalue())}
            page = Served(json.dumps({"files": [other, wheel_row]}).encode(), "application/vnd.pypi.simple.v1+json")
        self.files[f"/simple/{name}/"] = page
        served = self.files[f"/files/{filename}"] = Served(data.getvalue())
        return served


@contextmanager
def serve() -> Iterator[Web]:
    """A running Web."""
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            web.requests.append((self.path, asked, self.headers.get("Authorization", "")))
            served = web.files.get(self.path)
            if served is None:
                return self.send_error(404)
            if served.statuses:
                return self.send_error(served.statuses.pop(0))
            if served.redirect:
                self.send_response(302)
                self.send_header("Location", served.redirect)
                return self.end_headers()
            return self.send_file(served, asked)

        def send_file(self, served: Served, asked: str) -> None:
            start = int(asked[6:].rstrip("-")) if asked and served.ranges else 0
            if self.headers.get("If-Range", served.etag) != served.etag:
                start = 0
            if start >= len(served.body):
                return self.send_error(416)
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", served.content_type)
            self.send_header("Content-Length", str(len(served.body) - start))
            if served.etag:
                self.send_header("ETag", served.etag)
            self.end_headers()
            body = served.body[start:]
            if served.cuts:
                body = body[: served.cuts.pop(0)]
                self.close_connection = True
            self.wfile.write(body)
            return None

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    web.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
