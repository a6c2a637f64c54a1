"""Arguments of models in the headers of files: known names, types and limits, and no more than the file holds."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sightline.cli.main import main
from sightline.engine.checkpoint import write_weights
from sightline.hub import load
from sightline.models.weights.identify import arguments
from sightline.models.weights.recorded import FIELDS, CardError, check_recordable, read_arguments, within
from sightline.models.zoo import VARIANTS
from sightline.tasks.card import ModelCard
from sightline.util.errors import FileError, InputError

from ..cli.classifiers import CLASSES, classifier

HUGE = "1" + "0" * 400
SMALL = {"test_vit": {"img_size": 32, "num_classes": 3}, "test_resnet": {"num_classes": 3}, "inline_deit_tiny": {}}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cards")
    classifier(folder / "inline_deit_tiny.safetensors")
    for name, args in SMALL.items():
        if name.startswith("test_"):
            card = ModelCard(name, dict(args), CLASSES, (3, 32, 32))
            write_weights(folder / f"{name}.safetensors", timm.create_model(name, **args), card)
    return folder


def forge(files: Path, out: Path, name: str, **entries: str) -> Path:
    """A file with other entries in its header."""
    import safetensors

    source, target = files / f"{name}.safetensors", out / "forged.safetensors"
    with safetensors.safe_open(source, "pt") as file:
        save_file(load_file(source), target, {**file.metadata(), **entries})
    return target


FORGED: list[tuple[str, str, Any]] = [
    *(("test_vit", "depth", value) for value in (3_000_000, 900, "HUGE", -1, 1.5, True, "x", [1], {})),
    *(("test_vit", "embed_dim", value) for value in (10**9, 65536, "x")),
    *(("test_vit", "img_size", value) for value in (10**9, 65536, [10**5, 1], "x")),
    *(("test_vit", key, "os.system") for key in ("act_layer", "norm_layer", "block_fn", "embed_layer", "weight_init")),
    *(("test_vit", key, "x") for key in ("checkpoint_path", "pretrained", "pretrained_cfg", "cache_dir")),
    *(("test_resnet", "layers", value) for value in ([10**7] * 4, [900] * 4, [1], [2] * 10**5, "x")),
    *(("test_resnet", "block", value) for value in ("x", "basic", 1)),
    *(("test_resnet", "channels", value) for value in ([65536] * 4, [10**9] * 4, 3)),
    *(("inline_deit_tiny", "depths", value) for value in (3_000_000, 900, [], "HUGE")),
    *(("inline_deit_tiny", "attention", value) for value in (
        "inline*999999999", "enhanced(scales=60000)", "enhanced(scales=100000000)", "soft(iterations=1000000000)",
        "," * 10**6, "inline," * 10**5, "nystromformer(landmarks=100,iterations=100000000)", 3, ["inline"] * 10**5,
        "inline(agents=65536)", "inline(agents=49,window=65536)", "soft(landmarks=65536)",
    )),
    ("inline_deit_tiny", "evil", 1),
]  # fmt: skip


@pytest.mark.parametrize(("name", "key", "value"), FORGED, ids=lambda value: str(value)[:30])
def test_forged_arguments(files: Path, tmp_path: Path, name: str, key: str, value: Any) -> None:
    args = json.dumps({**SMALL[name], "num_classes": 3, key: value}).replace('"HUGE"', HUGE)
    started = time.process_time()
    with pytest.raises(FileError, match="forged") as caught:
        load(forge(files, tmp_path, name, model_args=args))
    assert time.process_time() - started < 10
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("model", "x" * 10**6), ("model", "hf-hub:timm/x"), ("model", "local-dir:/tmp"), ("model", "\x1b[31m"),
        ("model", "eva_giant_patch14_224"), ("model", ""), ("model_args", "null"), ("model_args", "[" * 10**5),
        ("model_args", '{"a":' * 10**4), ("model_args", ""), ("classes", "[" * 10**5), ("classes", '["a"]'),
        ("input", "null"), ("input", HUGE), ("input", '{"input_size": [3, 65536, 65536]}'), ("task", "detection"),
        ("task", "segmentation"), ("sequences", '{"task": "text", "length": 1000000000000}'),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_forged_entries(
    files: Path, tmp_path: Path, entry: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = forge(files, tmp_path, "test_vit", **{entry: value})
    assert main(["predict", str(Path(__file__).parent), "--checkpoint", str(path)]) == 2
    path = forge(files, tmp_path, "test_vit", **{entry: value})
    (tmp_path / "x.png").write_bytes(b"")
    assert main(["predict", str(tmp_path / "x.png"), "--checkpoint", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 2
    assert "\x1b" not in err


@pytest.mark.parametrize(
    ("key", "value"), [("input_size", [3, 65536, 65536]), ("crop_pct", 1e-9), ("crop_pct", 0.001), ("mean", [HUGE])]
)
def test_forged_sizes(key: str, value: Any) -> None:
    metadata = ModelCard("test_vit", {}, CLASSES, (3, 32, 32)).to_metadata()
    values = {**json.loads(metadata["input"]), key: value}
    with pytest.raises(CardError, match="input"):
        ModelCard.from_metadata({**metadata, "input": json.dumps(values).replace(f'"{HUGE}"', HUGE)})


def test_every_argument_of_our_models_can_be_recorded() -> None:
    for name in VARIANTS:
        args = {key: list(value) if isinstance(value, tuple) else value for key, value in arguments(name).items()}
        assert args.keys() <= FIELDS.keys()
        check_recordable(args)
        assert read_arguments({"model_args": json.dumps(args)}) == args


def test_what_cannot_be_recorded_is_rejected_before_training() -> None:
    with pytest.raises(InputError, match="block_fn"):
        check_recordable({"block_fn": "x"})


def test_a_build_is_counted() -> None:
    state = {"weight": torch.zeros(1)}
    with within(state):
        nn.Linear(2, 2)
    with pytest.raises(FileError, match="parameters"), within(state):
        nn.ModuleList(nn.Linear(1, 1) for _ in range(1000))
    with pytest.raises(FileError, match="modules"), within(state):
        nn.Sequential(*(nn.Identity() for _ in range(10_000)))
    with pytest.raises(FileError, match="buffers"), within(state), torch.device("meta"):
        nn.Module().register_buffer("mask", torch.zeros(10**5, 10**5))
    nn.ModuleList(nn.Linear(1, 1) for _ in range(1000))  # no longer counted
