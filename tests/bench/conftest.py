"""Short measurements: no test here depends on how fast anything is."""

import pytest

from sightline.bench import clock, run


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "WARM_UP_MS", 1.0)
    monkeypatch.setattr(clock, "PLAIN_WARM_UP_MS", 1.0)
    monkeypatch.setitem(run.CEILING_SIZES, "cpu", (2**16, 32))
