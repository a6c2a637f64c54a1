"""A session on a tiny model, and pictures to give it."""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image
from starlette.testclient import TestClient

from sightline.explorer.models import Models
from sightline.explorer.server import application
from sightline.explorer.session import Session

ARGS: dict[str, Any] = {"embed_dims": 16, "num_heads": 2, "depths": 2, "num_classes": 6}


def session(
    attention: Sequence[str] = (), name: str = "inline_deit_tiny", args: Any = ARGS, device: str = "cpu"
) -> Session:
    return Session(Models((), attention, name, args, torch.device(device)), None, attention, (64, 64))


def client(found: Session, token: str = "") -> TestClient:
    return TestClient(application(found, token), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


def png(width: int = 40, height: int = 30, seed: int = 0) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    target = BytesIO()
    Image.fromarray(pixels).save(target, "PNG")
    return target.getvalue()


def panel(page: TestClient, **changes: Any) -> dict[str, Any]:
    wanted = {"image": "cat", "model": "m0", "attention": None, "size": [64, 64], **changes}
    answer = page.post("/api/panels", json=wanted)
    assert answer.status_code == 200, answer.text
    return answer.json()
