"""Arguments of models as one types them."""

import pickle
from typing import Any

import pytest

from sightline.util.errors import FileError, shown
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


@pytest.mark.parametrize("value", ["x" * 10**6, 10**400, 10**5000, ["abc"] * 1000, b"\n" * 999], ids=type)
def test_long_values_are_cut_in_messages(value: object) -> None:
    assert 10 < len(shown(value)) <= 80
    assert "\n" not in shown(value)


def test_long_words_are_cut_in_errors() -> None:
    path = "/" + "x" * 10**6 + "/end"
    error = FileError(f"{path}: no such file")
    assert str(error).endswith("/end: no such file")
    assert len(str(error)) < 300
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
