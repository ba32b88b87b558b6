"""Find the wheel of a package on the package index that pip uses here.

Speaks the simple repository API: JSON (PEP 691) where offered, else HTML (PEP 503). Which index, with which
certificates, is read from pip's environment variables and configuration files, so whatever `pip install` reaches is
reached here; pip itself need not be there.
"""

from __future__ import annotations

import configparser
import functools
import json
import os
import re
import sys
import urllib.error
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from edged.errors import DownloadFailed
from edged.store.download import Link, Opener, open_url

DEFAULT_INDEX = "https://pypi.org/simple"
ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


class Index:
    """The package indexes in force."""

    def __init__(self, urls: list[str], opener: Opener = open_url) -> None:
        self.urls = urls
        self.open = opener

    @classmethod
    def from_pip(cls, env: Mapping[str, str] | None = None, files: list[Path] | None = None) -> Index:
        """As configured for pip. Raises DownloadFailed for PIP_NO_INDEX."""
        settings = pip_settings(os.environ if env is None else env, files)
        if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
            raise DownloadFailed("pip's configuration forbids package indexes (no-index)",
                                 hint="give the URL or the path of the model file")
        urls = [settings.get("index-url", DEFAULT_INDEX), *settings.get("extra-index-url", "").split()]
        return cls(urls, functools.partial(open_url, cafile=settings.get("cert", "")))

    def wheel(self, package: str, version: str) -> Link:
        """The wheel of that version. Raises DownloadFailed, saying of each index why it has none."""
        prefix = f"{re.sub(r'[-_.]+', '_', package).lower()}-{version}-"
        reasons = []
        for url in self.urls:
            try:
                links = self._links(f"{url.rstrip('/')}/{package}/")
            except (OSError, ValueError) as e:  # URLError is an OSError
                missing = isinstance(e, urllib.error.HTTPError) and e.code == 404
                reasons.append(f"{_public(url)}: {'no such package' if missing else getattr(e, 'reason', e) or e}")
                continue
            for link in links:
                if link.filename.lower().startswith(prefix) and link.filename.endswith(".whl"):
                    return link
            reasons.append(f"{_public(url)}: no wheel of version {version}")
        raise DownloadFailed(f"package {package} {version} not found: {'; '.join(reasons)}",
                             hint="set PIP_INDEX_URL to an index that has it, or give the URL or path of the file")

    def _links(self, url: str) -> list[Link]:
        with self.open(url, {"Accept": ACCEPT}) as response:
            body = response.read().decode()
            base = response.geturl()
            is_json = "json" in (response.headers.get("Content-Type") or "")
        return _from_json(body, base) if is_json else _from_html(body, base)


def _public(url: str) -> str:
    """The URL without name and password."""
    netloc = urlsplit(url).netloc
    return url.replace(netloc, netloc.rpartition("@")[2], 1)


def _from_json(body: str, base: str) -> list[Link]:
    return [
        Link(urljoin(base, f["url"]), f["filename"], f.get("hashes", {}).get("sha256", ""), f.get("size") or 0)
        for f in json.loads(body)["files"]
    ]


def _from_html(body: str, base: str) -> list[Link]:
    links = []

    class Anchors(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            href = dict(attrs).get("href")
            if tag == "a" and href:
                url, fragment = urldefrag(urljoin(base, href))
                name, _, value = fragment.partition("=")
                filename = unquote(urlsplit(url).path.rsplit("/", 1)[-1])
                links.append(Link(url, filename, value if name == "sha256" else ""))

    Anchors().feed(body)
    return links


def pip_settings(env: Mapping[str, str], files: list[Path] | None = None) -> dict[str, str]:
    """pip's settings for downloading, keys as in its files: files in pip's order, then PIP_... variables."""
    settings: dict[str, str] = {}
    for path in _pip_files(env) if files is None else files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, "utf-8")
        except (configparser.Error, UnicodeDecodeError) as e:
            raise DownloadFailed(f"{path}: {e}") from e
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                settings.update((key.replace("_", "-"), value) for key, value in parser.items(section))
    for name, value in env.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


def _pip_files(env: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, the ones that win last (pip's "Location" rules for Unix)."""
    home = Path(env.get("HOME", "~")).expanduser()
    own = env.get("PIP_CONFIG_FILE", "")
    if own == os.devnull:
        return []
    system = [Path(d) / "pip" for d in reversed(env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")) if d]
    user = [home / ".pip", Path(env.get("XDG_CONFIG_HOME", home / ".config")) / "pip"]
    folders = [*system, Path("/etc"), *user, Path(sys.prefix)]
    return [folder / "pip.conf" for folder in folders] + ([Path(own)] if own else [])
