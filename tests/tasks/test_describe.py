"""Models in words."""

import pytest

from sightline.engine.settings import load_recipe
from sightline.tasks.describe import describe


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("inline_swin_tiny", {}, "inline_swin_tiny"),
        ("inline_swin_tiny", {"num_classes": 5, "img_size": 64}, "inline_swin_tiny"),
        ("inline_deit_tiny", {"attention": "inline", "patch_size": 8}, "inline_deit_tiny (patch_size 8)"),
        ("inline_swin_tiny", {"attention": "softmax"}, "softmax attention in the inline_swin_tiny backbone"),
        (
            "inline_swin_tiny",
            {"attention": "inline,softmax,softmax,softmax"},
            "inline,softmax,softmax,softmax attention in the inline_swin_tiny backbone",
        ),
        ("resnet18", {"in_chans": 1}, "resnet18"),
        ("resnet18", None, "resnet18"),
        (
            "lra_listops",
            {"attention": "soft_norm", "depth": 4},
            "soft_norm attention in the lra_listops backbone (depth 4)",
        ),
    ],
)
def test_words(name: str, args: dict[str, object] | None, words: str) -> None:
    assert describe(name, args) == words


def test_the_quick_model_says_what_it_is() -> None:
    model = load_recipe("quick")["model"]
    assert describe(model["name"], model["args"]).startswith(
        "inline attention in the soft_tiny backbone (embed_dims 24-"
    )
