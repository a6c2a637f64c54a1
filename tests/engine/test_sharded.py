"""States of models that are sharded over processes, as FSDP does: written whole, and read back by every process."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.engine import warm
from tests.engine.tiny import ENVIRONMENT, command, make_images, metrics, write_recipe
from tests.engine.warm import Warm


def in_two(arguments: list[str], before: Any, port: int) -> list[str]:
    """Run a command in two processes of one group; what each wrote. Both must succeed."""
    shared = {**ENVIRONMENT, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared["CUDA_VISIBLE_DEVICES"] = ""  # Accelerate would put both on the one GPU of a machine
    ranks = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    started = [Warm(arguments, before=before, environment=environment) for environment in ranks]
    written = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], written
    return [out for out, _ in written]


def make(seed: int, mesh: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), 0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(7)
    model(torch.randn(4, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def save_and_read(folder: Path) -> None:
    """What each of two processes does."""
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from sightline.engine.checkpoint import Checkpoints
    from sightline.engine.state import Progress, capture, full_weights, is_sharded, restore
    from sightline.tasks.card import ModelCard

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    model, optimizer = make(0, mesh)
    plain, other = make(0, None)
    assert is_sharded(model)
    assert not is_sharded(plain)
    for _ in range(2):
        step(model, optimizer)
        step(plain, other)
    checkpoints = Checkpoints(folder, print)
    weights, tensors, record = capture(Progress(step=2), model, None, optimizer, None)
    if dist.get_rank() == 0:
        checkpoints.save(weights, ModelCard("x"), tensors, record)
    dist.barrier()
    fresh, again = make(1, mesh)
    saved = checkpoints.latest()
    assert saved is not None
    assert restore(saved, fresh, None, again, None).step == 2
    step(fresh, again)
    step(plain, other)
    found = full_weights(fresh)
    if dist.get_rank() == 0:
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(found[key], value)
        print("same")
    dist.destroy_process_group()
    sys.exit(0)


@pytest.mark.slow
def test_sharded_state_goes_through_a_checkpoint(tmp_path: Path) -> None:
    written = in_two([], partial(save_and_read, tmp_path / "checkpoints"), 29655)
    assert "same" in written[0]


def shard() -> None:
    """Accelerate shards on accelerators only; told that this is one, it takes the same way over gloo."""
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    from sightline.engine import train as engine
    from sightline.engine import trainer

    make_accelerator, ask = engine.make_accelerator, trainer.is_sharded

    def sharding(run: Any) -> Any:
        accelerator = make_accelerator(run)
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
        return accelerator

    def asked(model: Any) -> bool:
        print("sharded:", answer := ask(model))
        return answer

    engine.make_accelerator, trainer.is_sharded = sharding, asked  # type: ignore[assignment]


@pytest.mark.slow
def test_a_sharded_run_is_the_same_run(tmp_path: Path) -> None:
    """Stopped in the middle of an epoch and resumed, it has the losses and scores of one process."""
    images = make_images(tmp_path / "images", train=16)
    exact = {"model": {"drop_path": 0.0}, "augment": {"erase": 0.0}, "ema": {"decay": 0.0}}
    recipe = write_recipe(tmp_path / "recipe.yaml", batch={"size": 16}, optim={"lr": 3e-3, "clip": 1.0}, **exact)
    assert warm.run(command(recipe, images, tmp_path / "one")[3:]).returncode == 0
    for more in (["--run.max_steps", "2"], []):
        written = in_two(command(recipe, images, tmp_path / "two", *more)[3:], shard, 29656)
        assert all(out.count("sharded:") == out.count("sharded: True") == 1 for out in written)
        (tmp_path / "two/done.json").unlink()
    assert "resuming from" in written[0]
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-5)
        assert two["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)
        assert two["top1"] == one["top1"]
