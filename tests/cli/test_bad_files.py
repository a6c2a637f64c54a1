"""Files that are not what they claim: every one is rejected with one line and status 2, and nothing runs."""

import json
import pickle
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from sightline.cli.main import main
from sightline.models.zoo import create

from .checkpoints import Payload, bomb, forge, public, save, small

CAPTURE = pytest.CaptureFixture[str]


def rejected(source: Path | str, capsys: CAPTURE, *arguments: str) -> str:
    """The one line on the standard error when `source` is converted in vain."""
    out = Path(source).parent / "out.safetensors"
    assert main(["convert", str(source), str(out), *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("sightline: error: ")
    assert err.count("\n") == 1
    assert str(source) in err
    assert not list(out.parent.glob("*out.safetensors*"))
    return err


def test_missing(tmp_path: Path, capsys: CAPTURE) -> None:
    assert "no such file" in rejected(tmp_path / "none.pth", capsys)
    assert "no weights" in rejected(tmp_path, capsys)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", ["empty", "text", "random", "zeros"])
def test_not_a_checkpoint(suffix: str, content: str, tmp_path: Path, capsys: CAPTURE) -> None:
    contents = {
        "empty": b"",
        "text": b"hello, world\n" * 50,
        "random": random.Random(0).randbytes(5000),
        "zeros": bytes(5000),
    }
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(contents[content])
    err = rejected(path, capsys)
    assert "empty" in err or "not a checkpoint" in err or "not a readable safetensors" in err


@pytest.mark.parametrize("kind", ["zip", "old", "safetensors"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_truncated(kind: str, part: float, tmp_path: Path, capsys: CAPTURE) -> None:
    path = tmp_path / ("whole.safetensors" if kind == "safetensors" else "whole.pth")
    state = small("deit").state_dict()
    if kind == "safetensors":
        save_file(state, path)
    else:
        save({"model": state}, path, _use_new_zipfile_serialization=kind == "zip")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * part)])
    rejected(path, capsys)


@pytest.mark.parametrize("kind", ["zip", "old", "protocol 0", "protocol 4"])
def test_pickle_that_would_run_code(kind: str, tmp_path: Path, capsys: CAPTURE) -> None:
    marker, path = tmp_path / "marker", tmp_path / "evil.pth"
    evil = {"model": {**public(small("deit")), "extra": Payload(marker)}}
    if kind.startswith("protocol"):
        path.write_bytes(pickle.dumps(Payload(marker), protocol=int(kind[-1])))
    else:
        save(evil, path, _use_new_zipfile_serialization=kind == "zip")
    err = rejected(path, capsys)
    if kind != "protocol 4":  # of which torch reads nothing at all
        assert "could run code" in err
        assert "mkdir" in err
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        timm.create_model("inline_deit_tiny", checkpoint_path=str(path))
    assert not marker.exists()
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()  # the payload does work where it is let


@pytest.mark.parametrize(
    ("shape", "stride", "claimed"),
    [
        ((10**12,), (0,), 4),  # one number, said to be 10^12
        ((10**6, 10**6), (0, 0), 4),
        ((10**12,), (1,), 4),
        ((10**12,), (1,), 10**12),
        ((10**6,), (1,), 10**6),
    ],
)
def test_tensor_larger_than_its_data(
    shape: tuple[int, ...], stride: tuple[int, ...], claimed: int, tmp_path: Path, capsys: CAPTURE
) -> None:
    err = rejected(forge(tmp_path / "forged.pth", shape, stride, claimed), capsys)
    assert "claims shape" in err or "damaged" in err


def test_zip_bomb(tmp_path: Path, capsys: CAPTURE) -> None:
    path = bomb(tmp_path / "bomb.pth")
    assert Path(path).stat().st_size < 2**20
    assert "zip bomb" in rejected(path, capsys)


def test_safetensors_header_larger_than_its_data(tmp_path: Path, capsys: CAPTURE) -> None:
    for shape, end in (([10**6, 10**6], 4 * 10**12), ([10**6, 10**6], 16), ([2**40, 2**40], 16)):
        header = json.dumps({"head.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode()
        path = tmp_path / "forged.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
        rejected(path, capsys)
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    rejected(path, capsys)


def test_tensors_without_data(tmp_path: Path, capsys: CAPTURE) -> None:
    state = create("inline_deit_tiny", device="meta").state_dict()
    assert "not a plain tensor" in rejected(save(state, tmp_path / "meta.pth"), capsys)
    sparse = {"blocks.0.attn.qkv.weight": torch.eye(4).to_sparse()}
    assert "not a plain tensor" in rejected(save(sparse, tmp_path / "sparse.pth"), capsys)


def _with(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**state, **{key.replace("__", "."): value for key, value in changes.items()}}


def test_forged_block_numbers(tmp_path: Path, capsys: CAPTURE) -> None:
    state = public(small("pvt"))
    far = {**state, f"block1.{10**9 - 1}.norm1.weight": torch.ones(8)}
    assert "999999999" in rejected(save(far, tmp_path / "far.pth"), capsys)
    beyond = {**state, f"block1.{'9' * 5000}.norm1.weight": torch.ones(8)}
    assert "unexpected" in rejected(save(beyond, tmp_path / "beyond.pth"), capsys)
    many = {**state, **{f"block1.{i}.norm1.weight": torch.ones(8) for i in range(5000)}}
    assert "5000 blocks" in rejected(save(many, tmp_path / "many.pth"), capsys)


def test_no_weights(tmp_path: Path, capsys: CAPTURE) -> None:
    for content in ({}, {"model": {}}, [1, 2], {"epoch": 3}):
        assert "no weights" in rejected(save(content, tmp_path / "none.pth"), capsys)


def test_other_architectures(tmp_path: Path, capsys: CAPTURE) -> None:
    resnet = timm.create_model("test_resnet", num_classes=10).state_dict()
    err = rejected(save(resnet, tmp_path / "resnet.pth"), capsys)
    assert "family" in err
    pvt = save(public(small("pvt")), tmp_path / "pvt.pth")
    err = rejected(pvt, capsys, "--model", "inline_deit_tiny")
    assert re.search("pvt .*deit", err)
    assert "sightline list '*pvt*'" in err


def test_every_wrong_key_is_named(tmp_path: Path, capsys: CAPTURE) -> None:
    state = public(small("pvt"))
    del state["block1.0.mlp.fc2.bias"]
    state["block2.0.attn.extra"] = torch.zeros(3)
    state["block3.0.norm2.bias"] = torch.zeros(5)
    source, out = save(state, tmp_path / "public.pth"), tmp_path / "out.safetensors"
    assert main(["convert", source, str(out)]) == 2
    shown, err = capsys.readouterr()
    assert "missing      stages.0.blocks.0.mlp.fc2.bias\n" in shown
    assert "unexpected   stages.1.blocks.0.attn.extra (block2.0.attn.extra in the file)\n" in shown
    assert "wrong shape  stages.2.blocks.0.norm2.bias is (5,), should be (24,) (block3.0.norm2.bias in the" in shown
    keys = ("stages.0.blocks.0.mlp.fc2.bias", "stages.1.blocks.0.attn.extra", "stages.2.blocks.0.norm2.bias is (5,)")
    assert all(key in err for key in keys)
    assert err.count("\n") == 1


def test_another_variant_is_told_what_fits(tmp_path: Path, capsys: CAPTURE) -> None:
    source = save(create("inline_pvt_tiny").state_dict(), tmp_path / "native.pth")
    err = rejected(source, capsys, "--model", "inline_pvt_small")
    assert "stages.0.blocks.2.norm1.weight" in err
    assert "--model inline_pvt_tiny\n" in err


def test_split_projections_that_do_not_match(tmp_path: Path, capsys: CAPTURE) -> None:
    state = _with(public(small("pvt")), block1__0__attn__kv__weight=torch.zeros(16, 9))
    err = rejected(save(state, tmp_path / "public.pth"), capsys)
    assert "stages.0.blocks.0.attn.qkv.weight" in err
    assert "stages.0.blocks.0.attn.kv.weight" in err


@pytest.mark.parametrize("shape", [(5,), (1, 7, 8), (1, 0, 8), (2, 3, 4, 5)])
def test_position_tables_of_no_shape(shape: tuple[int, ...], tmp_path: Path, capsys: CAPTURE) -> None:
    state = _with(public(small("pvt")), pos_embed1=torch.zeros(shape))
    assert "pos_embed" in rejected(save(state, tmp_path / "public.pth"), capsys)


@pytest.mark.parametrize("key", ["patch_embed1.proj.weight", "block1.0.norm1.weight", "head.weight"])
@pytest.mark.parametrize("shape", [(), (0,), (0, 0, 0, 0), (3,)])
def test_misshapen_keys_that_the_layout_is_read_from(
    key: str, shape: tuple[int, ...], tmp_path: Path, capsys: CAPTURE
) -> None:
    state = {**public(small("pvt")), key: torch.zeros(shape)}
    rejected(save(state, tmp_path / "public.pth"), capsys)


def test_forged_metadata_is_not_believed(tmp_path: Path, capsys: CAPTURE) -> None:
    state = {k: v.contiguous() for k, v in small("deit").state_dict().items()}
    for arguments in ('{"depths": 1000000000}', "{", "[]", '{"evil": 1}', '{"embed_dims": "x"}', "3"):
        path = tmp_path / "forged.safetensors"
        save_file(state, path, {"format": "pt", "model": "inline_deit_tiny", "model_args": arguments})
        assert main(["convert", str(path), str(tmp_path / "out.safetensors"), "--force"]) == 0
        assert "depths=2" in capsys.readouterr().out
