"""The order of images: complete, reproducible, resumable, and the same for any number of processes."""

import pytest
import torch

from sightline.data.order import Order, Placement, derive


def order_of(
    images: int, batch: int, accumulate: int = 1, ranks: int = 1, rank: int = 0, seed: int = 0, **more: int
) -> Order:
    place = Placement(torch.device("cpu"), batch, accumulate, ranks=ranks, rank=rank, seed=seed)
    return place.order(images, **more)


def test_seeds_do_not_collide() -> None:
    assert len({derive(a, b, c) for a in range(10) for b in range(10) for c in range(10)}) == 1000
    assert derive(1, 2, 3) == 6520558355739401531


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("parts", [1, 2])
def test_processes_share_the_same_batches(ranks: int, parts: int) -> None:
    whole = [sorted(keys) for keys in order_of(70, 16, parts, seed=3).keys(2)]
    shares = [list(order_of(70, 16, parts, ranks, rank, 3).keys(2)) for rank in range(ranks)]
    assert [sorted(key for share in shares for key in share[i]) for i in range(4 * parts)] == whole


def test_an_epoch_has_every_image_once_and_other_epochs_another_order() -> None:
    first, second = (order_of(64, 16).sequence(epoch).tolist() for epoch in (0, 1))
    assert sorted(first) == list(range(64)) == sorted(second)
    assert first != second


def test_resuming_in_the_middle() -> None:
    order = order_of(64, 16, 2)
    assert list(order.keys(5, start=2)) == list(order.keys(5))[4:]


def test_partners_stay_together() -> None:
    for ranks in (1, 2, 4):
        for rank in range(ranks):
            slots = order_of(64, 16, 1, ranks, rank).slots()
            assert torch.equal(slots.flip(0), 15 - slots)


def test_repeated_augmentation() -> None:
    keys = [key for part in order_of(12, 4, repeats=3).keys(0) for key in part]
    assert len(keys) == 12
    assert len({index for index, _ in keys}) == 4
    assert len({seed for _, seed in keys}) == 12


def test_epochs_are_stretches_of_passes() -> None:
    order = order_of(50, 8, seed=1, length=4)  # 6 updates in a pass
    assert order.steps == 4
    taken = torch.cat([order.sequence(epoch) for epoch in range(3)]).view(12, 8)
    passes = [taken[:6].flatten().tolist(), taken[6:].flatten().tolist()]
    for each in passes:
        assert len(set(each)) == 48
    assert passes[0] != passes[1]
    whole = order_of(50, 8, seed=1)
    assert whole.steps == 6
    assert whole.sequence(1)[:48].tolist() == passes[1]
    assert [len(places) for places in order.positions(1)] == [8, 8, 8]


def test_processes_share_an_epoch() -> None:
    alone = order_of(50, 8, seed=1, length=4)
    ranks = [order_of(50, 8, ranks=2, rank=rank, seed=1, length=4) for rank in range(2)]
    for one, *both in zip(alone.positions(), *(rank.positions() for rank in ranks), strict=True):
        assert sorted(torch.cat(both).tolist()) == one.tolist()


@pytest.mark.parametrize(("images", "batch", "message"), [(100, 6, "multiple of 4"), (3, 4, "more than the 3")])
def test_impossible_batches(images: int, batch: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        order_of(images, batch, 2, 2)


@pytest.mark.parametrize("images", [1, 5, 16, 17, 31])
def test_evaluation_counts_every_image_once(images: int) -> None:
    for ranks in (1, 2, 4):
        shares = [list(Placement(torch.device("cpu"), 8, eval_batch=6, ranks=ranks, rank=r).evaluation(images))
                  for r in range(ranks)]  # fmt: skip
        assert sorted(i for share in shares for local in share for i in local) == list(range(images))
        assert len({len(share) for share in shares}) == 1
