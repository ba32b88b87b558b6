from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edged.errors import DownloadFailed
from edged.store.index import DEFAULT_INDEX, Index, pip_settings
from tests.store.fakes import Web, serve


@pytest.fixture
def web() -> Iterator[Web]:
    with serve() as web:
        yield web


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_wheel_of_the_version(web: Web, html: bool) -> None:
    served = web.package("some-model", "1.2.0", {"m": b"x"}, html=html)
    link = Index([web.url + "/simple"]).wheel("some-model", "1.2.0")
    assert link.url == f"{web.url}/files/some_model-1.2.0-py3-none-any.whl"
    assert link.filename == "some_model-1.2.0-py3-none-any.whl"
    assert len(link.sha256) == 64
    assert link.size == (0 if html else len(served.body))


def test_every_index_is_asked_and_every_reason_given(web: Web) -> None:
    web.package("some-model", "1.0", {"m": b"x"})
    index = Index(["http://user:secret@127.0.0.1:9/simple", web.url + "/empty", web.url + "/simple"])
    assert index.wheel("some-model", "1.0").filename.startswith("some_model-1.0-")
    with pytest.raises(DownloadFailed) as caught:
        index.wheel("some-model", "1")
    assert "refused" in caught.value.message
    assert "no such package" in caught.value.message
    assert "no wheel of version 1" in caught.value.message
    assert "secret" not in caught.value.message


def test_index_on_disk(tmp_path: Path) -> None:
    page = tmp_path / "simple" / "some-model" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<a href="../../some_model-1.0-py3-none-any.whl">w</a>')
    link = Index([(tmp_path / "simple").as_uri()]).wheel("some-model", "1.0")
    assert link.url == (tmp_path / "some_model-1.0-py3-none-any.whl").as_uri()


def test_pip_settings_files_in_order_then_environment(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[global]\nindex-url = http://a\ncert = /a.pem\n[list]\nformat = json\n")
    (tmp_path / "b").write_text("[install]\nindex_url = http://b\n")
    files = [tmp_path / "a", tmp_path / "missing", tmp_path / "b"]
    assert pip_settings({}, files) == {"index-url": "http://b", "cert": "/a.pem"}
    assert pip_settings({"PIP_INDEX_URL": "http://c", "PIP_CERT": ""}, files)["index-url"] == "http://c"
    index = Index.from_pip({"PIP_EXTRA_INDEX_URL": "http://d http://e"}, files)
    assert index.urls == ["http://b", "http://d", "http://e"]


def test_pip_configuration_is_found_where_pip_finds_it(tmp_path: Path) -> None:
    (tmp_path / "home" / ".config" / "pip").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "pip" / "pip.conf").write_text("[global]\nindex-url = http://user-level\n")
    (tmp_path / "own.conf").write_text("[global]\nindex-url = http://own\n")
    env = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_DIRS": str(tmp_path)}
    assert pip_settings(env)["index-url"] == "http://user-level"
    assert pip_settings({**env, "PIP_CONFIG_FILE": str(tmp_path / "own.conf")})["index-url"] == "http://own"
    assert pip_settings({**env, "PIP_CONFIG_FILE": "/dev/null"}) == {"config-file": "/dev/null"}


def test_default_index_and_no_index() -> None:
    assert Index.from_pip({}, []).urls == [DEFAULT_INDEX]
    with pytest.raises(DownloadFailed, match="no-index"):
        Index.from_pip({"PIP_NO_INDEX": "1"}, [])


def test_broken_pip_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = http://a\n")
    with pytest.raises(DownloadFailed, match=r"pip\.conf"):
        pip_settings({}, [tmp_path / "pip.conf"])
