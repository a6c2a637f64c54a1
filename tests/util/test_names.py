"""Arguments of models as one types them."""

from typing import Any

import pytest

from sightline.util.names import parse_model_args


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("depths=1,3,20,4", {"depths": [1, 3, 20, 4]}),
        ("patch_size=8,global_pool=avg", {"patch_size": 8, "global_pool": "avg"}),
        ("attention=soft(ratio=2,landmarks=9),depths=2", {"attention": "soft(ratio=2,landmarks=9)", "depths": 2}),
        ('{"patch_size": 8, "global_pool": "avg"}', {"patch_size": 8, "global_pool": "avg"}),
    ],
)  # fmt: skip
def test_arguments_with_commas_between(text: str, wanted: dict[str, Any]) -> None:
    assert parse_model_args([text]) == wanted
