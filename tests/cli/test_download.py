"""`sightline download`."""

import json
from pathlib import Path

import pytest

from sightline.cli.main import main
from sightline.models.weights.published import PUBLISHED, Published

from ..models.test_pretrained import Site, site

__all__ = ["site"]
SMALL = ["inline_deit_tiny", "inline_pvt_tiny"]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["download", *words])
    out, err = capsys.readouterr()
    return status, out, err


def test_download(site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    site.publish("deit")
    site.publish("pvt")
    status, out, err = run(capsys, *SMALL, "--to", str(tmp_path / "there"))
    assert (status, err) == (0, "")
    for name in SMALL:
        assert str(tmp_path / "there" / f"{name}.pth") in out
    assert out.count("no licence is published") == 2
    (row,) = json.loads(run(capsys, SMALL[0], "--json")[1])
    assert (row["name"], row["path"], row["downloaded"]) == (SMALL[0], str(site.path), True)
    assert "already there" in run(capsys, SMALL[0])[1]
    assert site.path.is_file()


def test_all_continues_after_a_failure(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in set(PUBLISHED) - set(SMALL):
        monkeypatch.delitem(PUBLISHED, name)
    site.publish("pvt")
    status, out, err = run(capsys, "all")
    assert status == 2
    assert "inline_pvt_tiny: downloaded" in out
    first, last = err.splitlines()
    assert "404" in first
    assert f"{site.server.url}/inline_deit_tiny" in first
    assert "1 of 2" in last


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["soft_huge"], "soft_huge"),
        (["inline_deit_tiny", "inline_deit_tinny"], "'inline_deit_tiny'"),
        (["inline_deit_tiny", "--to", ""], "--to"),
        ([], "NAMES"),
    ],
)
def test_bad_input(words: list[str], named: str, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert named in err
    assert err.count("\n") == 1
    assert site.server.requests == []


def test_no_connection(site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PUBLISHED, SMALL[0], Published("http://127.0.0.1:9/file", ""))
    status, _, err = run(capsys, SMALL[0])
    assert status == 2
    assert "http://127.0.0.1:9/file" in err
    assert str(site.path) in err
    assert err.count("\n") == 1
