"""Results that are kept: made once, bounded, also for several threads."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from sightline.explorer.kept import Kept


def test_the_oldest_goes_first() -> None:
    kept: Kept[str] = Kept(5, len)
    for key in "abc":
        kept.get(key, lambda key=key: key * 2)
    assert [kept.find(key) for key in "abc"] == [None, "bb", "cc"]
    assert kept.total == 4
    kept.find("b")
    kept.get("d", lambda: "dd")
    assert kept.find("c") is None
    assert kept.get("e", lambda: "e" * 9) == "e" * 9  # alone it stays, whatever its size
    assert kept.find("e") == "e" * 9
    assert kept.find("d") is None


def test_each_is_made_once() -> None:
    kept, go, made = Kept[int](9), Event(), []

    def make() -> int:
        made.append(1)
        go.wait(5)
        return 7

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(kept.get, "key", make) for _ in range(4)]
        go.set()
        assert [item.result(5) for item in waiting] == [7] * 4
    assert len(made) == 1


def test_an_error_is_not_kept() -> None:
    kept: Kept[int] = Kept(9)
    with pytest.raises(ZeroDivisionError):
        kept.get("key", lambda: 1 // 0)
    assert kept.get("key", lambda: 3) == 3
