"""The same answers from a GPU as from the CPU."""

import base64
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sightline.explorer.page import page
from sightline.explorer.session import Session

from . import small

MECHANISMS = ("inline", "softmax", "linear")
VIEWS: dict[str, Callable[[Session, str], dict[str, Any]]] = {
    "row": lambda found, panel: found.row(panel, 1, 3),
    "class": lambda found, panel: found.row(panel, 1, "class"),
    "rollout": lambda found, panel: found.rollout(panel, 3),
    "local": lambda found, panel: found.local(panel, 1, 3),
}


def weights(answer: dict[str, Any]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    numbers = np.frombuffer(base64.b64decode(answer["weights"]), np.int8).reshape(answer["heads"], -1)
    return numbers * np.array(answer["scale"])[:, None]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["inline_deit_tiny", "inline_swin_tiny", "soft_tiny"])
def test_a_gpu_answers_as_the_cpu(name: str) -> None:
    plain = "deit" in name
    args = small.ARGS if plain else {"depths": (1, 1, 1, 1), "embed_dims": 16, "num_heads": (2, 2, 2, 2)}
    there, here = (small.session(MECHANISMS if plain else (), name, args, device) for device in ("cuda", "cpu"))
    for wanted in here.start:
        id, facts = there.panel(wanted)["id"], here.panel(wanted)
        assert there.view(id).image.is_cuda
        assert all(part.q.is_cuda for block in there.view(id).blocks for part in block.parts)
        has = {"local": facts["blocks"][1]["local"], "class": plain, "rollout": facts["rollout"] is not None}
        for kind, ask in VIEWS.items():
            if has.get(kind, True):
                found, expected = ask(there, id), ask(here, id)
                most = max(expected["scale"])
                np.testing.assert_allclose(weights(found), weights(expected), atol=1.5 * most, err_msg=kind)
        assert there.confusion(id, 1, None, 3, True)["grid"] == facts["blocks"][1]["grid"]
    assert "sightline-data" in page(there, [there.panel(wanted)["id"] for wanted in there.start])
