"""`pretrained=True`: published weights from a real server, through every door, and the cache for them."""

import hashlib
import io
import json
import os
import resource
import sys
import threading
import time
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import sightline
from sightline.models.weights.fit import MismatchError
from sightline.models.weights.packaged import DEFAULT
from sightline.models.weights.published import PUBLISHED, Published, cache_folder, check_tensors
from sightline.models.weights.reader import Weights
from sightline.models.zoo import VARIANTS
from sightline.util import download as http
from sightline.util.download import DownloadError
from sightline.util.errors import FileError, InputError, WeightsWarning

from ..engine.warm import Warm
from ..http_server import File, Server, serving
from .tiny import TINY, assert_close, image, tiny
from .weights import GOLDEN, Golden, names

NAME = TINY["deit"][0]
FAMILIES = [family for family, (name, _) in TINY.items() if name in PUBLISHED]


@dataclass
class Site:
    """A server with the weights of small models under their published names, and an empty cache."""

    server: Server
    folder: Path

    def publish(self, family: str, data: bytes | None = None, **options: Any) -> str:
        """Serve the weights of a family, or other data; the name of its model."""
        name = TINY[family][0]
        options.setdefault("etag", '"1"')
        self.server.routes[f"/{name}"] = File(checkpoint(family) if data is None else data, **options)
        return name

    @property
    def path(self) -> Path:
        return self.folder / f"{NAME}.pth"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if not path.name.endswith(".lock"))


def checkpoint(family: str, **arguments: Any) -> bytes:
    """The weights of a small model as a file of torch.save."""
    file = io.BytesIO()
    torch.save({"model": tiny(family, num_classes=1000, **arguments).state_dict()}, file)
    return file.getvalue()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(http, "PAUSE", 0.0)
    with serving() as server:
        for name, arguments in (TINY[family] for family in FAMILIES):
            variant = VARIANTS[name]
            monkeypatch.setitem(VARIANTS, name, replace(variant, size=64, args={**variant.args, **arguments}))
            monkeypatch.setitem(PUBLISHED, name, Published(f"{server.url}/{name}", PUBLISHED[name].licence))
        yield Site(server, tmp_path / "home")


def quietly(name: str = NAME, **arguments: Any) -> nn.Module:
    """A pretrained model, without the line about its licence."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*licence", WeightsWarning)
        return timm.create_model(name, pretrained=True, **arguments).eval()


def assert_same_state(model: nn.Module, want: nn.Module, part: str = "") -> None:
    own, state = model.state_dict(), want.state_dict()
    assert all(torch.equal(own[key], state[key]) for key in own if part in key)
    assert [key for key in own if part in key]


def test_the_table_is_complete() -> None:
    assert len(PUBLISHED) == 18
    assert set(PUBLISHED) <= set(VARIANTS)
    assert len({each.url for each in PUBLISHED.values()}) == 18
    assert all(each.licence for each in PUBLISHED.values())
    assert set(timm.list_models("inline_*", pretrained=True)) == {
        DEFAULT, *(name for name in PUBLISHED if "inline" in name)
    }  # fmt: skip
    rows = sightline.models.factory.describe_models()
    assert {row["name"] for row in rows if row["weights"]} == {DEFAULT, *PUBLISHED}
    assert [row["weights"] for row in rows if row["name"] == DEFAULT] == ["in the package"]
    with pytest.raises(InputError, match="come with the package"):
        sightline.download(DEFAULT)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, site: Site) -> None:
    name = site.publish(family)
    x = image()
    want = tiny(family, num_classes=1000)
    assert_close(quietly(name)(x), want(x), 1e-6)
    assert_close(sightline.create_model(name, pretrained=True).eval()(x), want(x), 1e-6)
    assert len(site.server.requests) == 1


@pytest.mark.parametrize("family", ["deit", "swin", "soft"])
def test_other_shapes(family: str, site: Site) -> None:
    """The same as loading the file: sizes, channels and classes are fitted."""
    name = site.publish(family)
    path = site.folder.parent / "file.pth"
    path.write_bytes(checkpoint(family))
    given = {"img_size": (96, 64), "num_classes": 7, "in_chans": 1}
    with pytest.warns(WeightsWarning, match="1000 classes"):
        model = timm.create_model(name, pretrained=True, **given)
    with pytest.warns(WeightsWarning, match="1000 classes"):
        want = timm.create_model(name, checkpoint_path=str(path), **given)
    own, state = model.state_dict(), want.state_dict()
    assert all(torch.equal(own[key], state[key]) for key in own if not key.startswith("head."))
    assert model(image(96, 64, channels=1)).shape == (2, 7)


@pytest.mark.parametrize("family", ["deit", "pvt"])
def test_features_only(family: str, site: Site) -> None:
    name = site.publish(family)
    maps = quietly(name, features_only=True, out_indices=(0, 1))(image(96))
    want = tiny(family, num_classes=1000, features_only=True, out_indices=(0, 1))
    whole = quietly(name)
    x = image(96)
    taken = whole.forward_intermediates(x, [0, 1], intermediates_only=True)
    assert [found.shape for found in maps] == [found.shape for found in want(x)]
    for found, expected in zip(quietly(name, features_only=True, out_indices=(0, 1))(x), taken, strict=True):
        assert_close(found, expected, 1e-6)


def test_another_attention(site: Site) -> None:
    site.publish("deit")
    quietly()
    with pytest.warns(WeightsWarning, match="attention mechanism") as caught:
        model = timm.create_model(NAME, pretrained=True, attention="softmax")
    assert len(caught) == 1
    assert "12 of the checkpoint are left out" in str(caught[0].message)
    assert_same_state(model, tiny("deit", num_classes=1000), "qkv")


def test_dtype_and_device(site: Site) -> None:
    site.publish("deit")
    assert next(quietly(dtype=torch.float16).parameters()).dtype is torch.float16
    assert next(quietly(device="meta", img_size=96).parameters()).is_meta


def test_no_weights_are_published(site: Site) -> None:
    for create in (timm.create_model, sightline.create_model):
        with pytest.raises(InputError, match="soft_huge"):
            create("soft_huge", pretrained=True)
    with pytest.raises(InputError, match="inline_swin_base_384"):
        sightline.download("inline_swin_base_384")
    with pytest.raises(InputError, match="inline_swin_tiny"):
        sightline.download("inline_swin_tin")
    assert site.server.requests == []


def test_the_licence_is_shown_at_a_download(site: Site) -> None:
    site.publish("deit")
    with pytest.warns(WeightsWarning, match="no licence is published"):
        timm.create_model(NAME, pretrained=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timm.create_model(NAME, pretrained=True)
        assert "no licence" in sightline.download(NAME).licence
    site.publish("soft")
    with pytest.warns(WeightsWarning, match="MIT"):
        sightline.download("soft_tiny")


def test_the_cache(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site.publish("deit")
    quietly()
    digest = hashlib.sha256(site.path.read_bytes()).hexdigest()
    assert site.names() == [site.path.name, f"{site.path.name}.sha256"]
    assert (site.folder / f"{site.path.name}.sha256").read_text() == f"{digest}  {site.path.name}\n"
    cached = sightline.download(NAME)
    assert (cached.path, cached.sha256, cached.downloaded) == (site.path, digest, False)
    assert len(site.server.requests) == 1
    monkeypatch.delenv("SIGHTLINE_HOME")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    assert cache_folder() == tmp_path / "torch" / "hub" / "checkpoints"
    quietly()
    assert (cache_folder() / site.path.name).is_file()
    quietly(cache_dir=str(tmp_path / "timm"))
    assert (tmp_path / "timm" / site.path.name).is_file()
    assert sightline.download(NAME, tmp_path / "to").path == tmp_path / "to" / site.path.name


def test_a_file_that_changed_in_the_cache(site: Site) -> None:
    site.publish("deit")
    quietly()
    data = bytearray(site.path.read_bytes())
    data[len(data) // 2] ^= 1
    site.path.write_bytes(data)
    with pytest.raises(FileError, match="SHA-256") as caught:
        quietly()
    assert str(site.path) in str(caught.value)
    assert site.path.read_bytes() == data  # it is left for its owner to look at


@pytest.mark.parametrize("fits", [True, False])
def test_a_file_that_was_put_there_by_hand(fits: bool, site: Site) -> None:
    site.folder.mkdir()
    site.path.write_bytes(checkpoint("deit" if fits else "pvt"))
    if fits:
        assert_same_state(quietly(), tiny("deit", num_classes=1000))
        assert f"{site.path.name}.sha256" in site.names()
    else:
        with pytest.raises(FileError, match="remove the file"):
            quietly()
        assert site.names() == [site.path.name]
    assert site.server.requests == []


@pytest.mark.parametrize("noted", [True, False])
def test_a_read_only_cache(noted: bool, site: Site) -> None:
    site.publish("deit")
    quietly()
    if not noted:
        (site.folder / f"{site.path.name}.sha256").unlink()
    with _read_only(site.folder):
        quietly()
        with pytest.raises(InputError, match="SIGHTLINE_HOME"):
            quietly(site.publish("pvt"))
    assert (f"{site.path.name}.sha256" in site.names()) == noted


@contextmanager
def _read_only(folder: Path) -> Iterator[None]:
    """No files can be created in a folder, not even by root, who is nobody for a while."""
    folder.chmod(0o555)
    for parent in folder.parents:
        if parent.owner() == folder.owner() and parent.parent != Path("/"):
            parent.chmod(0o755)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.mark.parametrize("option", [{}, {"cache_dir": "given"}])
def test_a_folder_that_cannot_be_written(option: dict[str, str], site: Site, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    if option:
        option = {"cache_dir": str(tmp_path / "home" / "below")}
    with pytest.raises(InputError, match="to" if option else "SIGHTLINE_HOME"):
        quietly(**option)


def test_no_connection(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PUBLISHED, NAME, Published("http://127.0.0.1:9/file", "none"))
    with pytest.raises(DownloadError) as caught:
        sightline.download(NAME)
    assert "http://127.0.0.1:9/file" in str(caught.value)
    assert str(site.path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("what", ["another model", "another depth", "text", "nothing", "code", "a page", "truncated"])
def test_another_file_is_rejected_and_removed(what: str, site: Site) -> None:
    data = {
        "another model": lambda: checkpoint("pvt"),
        "another depth": lambda: checkpoint("deit", depths=4),
        "text": lambda: b"no such file",
        "nothing": lambda: b"",
        "code": _code,
        "a page": lambda: b"<!doctype html><title>Log in</title>",
        "truncated": lambda: checkpoint("deit")[:-2000],
    }[what]()
    site.publish("deit", data)
    for _ in range(2):
        with pytest.raises(FileError) as caught:
            quietly()
        assert site.server.url in str(caught.value)
        assert site.names() == []
    assert isinstance(caught.value.__cause__, MismatchError) == (what.startswith("another"))
    site.publish("deit")
    quietly()


def _code() -> bytes:
    file = io.BytesIO()
    torch.save({"model": {"weight": torch.zeros(1)}, "hook": os.system}, file)
    return file.getvalue()


def test_options_of_a_training_program(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is built on Swin saves its yacs configuration with the weights; it is read as a dictionary."""

    class CfgNode(dict[str, Any]):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.__dict__["__deprecated_keys__"] = {"x"}

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    module = types.ModuleType("yacs.config")
    module.CfgNode = CfgNode  # type: ignore[attr-defined]
    file = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
        patch.setitem(sys.modules, "yacs.config", module)
        config = CfgNode({"MODEL": CfgNode({"NAME": "inline"}), "LR": 0.1})
        state = tiny("deit", num_classes=1000).state_dict()
        torch.save({"model": state, "config": config, "epoch": 299, "max_accuracy": 74.5}, file)
    site.publish("deit", file.getvalue())
    assert_same_state(quietly(), tiny("deit", num_classes=1000))


def test_a_tensor_too_many(site: Site) -> None:
    state: dict[str, Tensor] = {**tiny("deit", num_classes=1000).state_dict(), "extra": torch.zeros(1)}
    file = io.BytesIO()
    torch.save(state, file)
    site.publish("deit", file.getvalue())
    with pytest.raises(FileError, match="extra"):
        quietly()
    assert site.names() == []


def test_the_public_depths_of_soft_norm_small(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public code has other depths than the paper: either is accepted, by the model that asks for it."""
    assert PUBLISHED["soft_norm_small"].args == {"depths": (1, 3, 20, 4)}
    name = site.publish("soft_norm", checkpoint("soft_norm", depths=(1, 1, 2, 1)))
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], args={"depths": (1, 1, 2, 1)}))
    assert len(quietly(name, depths=(1, 1, 2, 1)).stages[2].blocks) == 2  # type: ignore[index]
    with pytest.raises(MismatchError, match=r"stages\.2\.blocks\.1"):
        quietly(name)
    assert f"{name}.pth" in site.names()


@pytest.mark.parametrize("name", [name for name in names() if name in PUBLISHED])
def test_the_published_layouts_are_accepted(name: str) -> None:
    """Every tensor of the public models, buffers that follow from the architecture included; not one may be missing."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        rows = json.loads(str(file["meta"]))["state"]
    state = {key: torch.empty(shape, device="meta") for key, shape, _ in rows}
    build = partial(timm.create_model, name, device="meta")
    check_tensors(name, Weights(Path("file.pth"), state), build)
    del state["head.bias"]
    with pytest.raises(MismatchError, match=r"head\.bias"):
        check_tensors(name, Weights(Path("file.pth"), state), build)


@pytest.mark.slow
def test_golden_logits_through_a_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The public model at its full size, as its authors would serve it."""
    golden = Golden.read(NAME)
    file = io.BytesIO()
    torch.save({"model": golden.state, "epoch": 299}, file)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        monkeypatch.setitem(PUBLISHED, NAME, Published(f"{server.url}/f/1/?dl=1", "none"))
        server.routes |= {
            "/f/1/?dl=1": "/seafhttp/files/2/best.pth",
            "/seafhttp/files/2/best.pth": File(file.getvalue()),
        }
        model = quietly(cache_dir=tmp_path)
    with torch.inference_mode():
        assert_close(model(golden.images), golden.logits, 1e-3)
    assert (tmp_path / f"{NAME}.pth").is_file()


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_an_interrupted_download_resumes(share: float, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "OVERLAP", 1000)
    data = checkpoint("deit")
    cut = int(len(data) * share)
    site.publish("deit", cuts=[cut, 0, 0, 0, 0, 0])
    with pytest.raises(DownloadError, match="resume"):
        sightline.download(NAME)
    assert site.path.with_name(f"{NAME}.pth.part").stat().st_size == cut
    site.publish("deit")
    quietly()
    assert site.server.requests[-1][1]["Range"] == f"bytes={cut - 1000}-"


def fetch(url: str) -> None:
    """What a process does instead of its command."""
    VARIANTS[NAME] = replace(VARIANTS[NAME], size=64, args=TINY["deit"][1])
    PUBLISHED[NAME] = Published(url, "none")
    warnings.simplefilter("ignore")
    print(sightline.download(NAME).downloaded)
    sys.exit(0)


def process(site: Site) -> Warm:
    return Warm([], before=partial(fetch, f"{site.server.url}/{NAME}"), environment=dict(os.environ))


@pytest.mark.slow
def test_a_killed_process_and_two_at_once(site: Site) -> None:
    """A process is killed in the middle; of two others, one resumes and the second waits for it."""
    site.publish("deit", delay=0.15, block=8192)
    part = site.path.with_name(f"{NAME}.pth.part")
    first = process(site)
    while not (part.exists() and part.stat().st_size > 0):
        assert first.poll() is None, first.communicate()
        time.sleep(0.01)
    first.kill()
    first.communicate()
    assert site.names() == [part.name, f"{part.name}.json"]
    both = [process(site), process(site)]
    out = [each.communicate() for each in both]
    assert sorted(text for text, _ in out) == ["False\n", "True\n"], out
    assert len(site.server.requests) == 2
    assert site.names() == [site.path.name, f"{site.path.name}.sha256"]


def test_two_threads_at_once(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.publish("deit", delay=0.02, block=8192)
    found = []
    threads = [threading.Thread(target=lambda: found.append(sightline.download(NAME).downloaded)) for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [False, False, True]
    assert len(site.server.requests) == 1
    assert "waiting" in capsys.readouterr().err


def test_a_full_disk(site: Site) -> None:
    site.publish("deit")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(DownloadError, match="cannot be written"):
            quietly()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert site.path.with_name(f"{NAME}.pth.part").stat().st_size == 20_000
    quietly()


def test_weights_of_ones_own(site: Site, tmp_path: Path) -> None:
    """timm's own ways to name weights go on working, for any number of channels."""
    path = tmp_path / "file.pth"
    path.write_bytes(checkpoint("deit"))
    model = timm.create_model(NAME, pretrained=True, pretrained_cfg_overlay={"file": str(path)}, in_chans=6)
    assert model(image(channels=6)).shape == (2, 1000)
    state = tiny("deit", num_classes=1000).state_dict()
    given = timm.create_model(NAME, pretrained=True, pretrained_cfg_overlay={"state_dict": state})
    assert_same_state(given, tiny("deit", num_classes=1000))
    assert site.server.requests == []


def test_an_encoder_of_segmentation_models(site: Site) -> None:
    smp = pytest.importorskip("segmentation_models_pytorch", reason="needs the extra `dense`")
    name = site.publish("pvt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smp.Unet(f"tu-{name}", encoder_weights="imagenet", encoder_depth=5)
    assert_same_state(model.encoder.model.model, tiny("pvt", num_classes=1000), "stages")
