"""States of models that are sharded over processes, as FSDP does: written whole, and read back by every process."""

import sys
from pathlib import Path

import pytest

from tests.engine import warm
from tests.engine.tiny import command, make_images, metrics, run, write_recipe

SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import distributed as dist, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from sightline.engine.checkpoint import Checkpoints
from sightline.engine.state import Progress, capture, full_weights, is_sharded, restore
from sightline.tasks.classification.card import ModelCard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))

def make(seed, shard):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    if shard:
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), 0.1)

def step(model, optimizer):
    torch.manual_seed(7)
    model(torch.randn(4, 5)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

model, optimizer = make(0, True)
plain, other = make(0, False)
assert is_sharded(model) and not is_sharded(plain)
for _ in range(2):
    step(model, optimizer)
    step(plain, other)
checkpoints = Checkpoints(Path(sys.argv[1]), print)
weights, tensors, record = capture(Progress(step=2), model, None, optimizer, None)
if dist.get_rank() == 0:
    checkpoints.save(weights, ModelCard("x"), tensors, record)
dist.barrier()
fresh, again = make(1, True)
assert restore(checkpoints.latest(), fresh, None, again, None).step == 2
step(fresh, again)
step(plain, other)
found = full_weights(fresh)
if dist.get_rank() == 0:
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(found[key], value)
    print("same")
dist.destroy_process_group()
"""


def test_sharded_state_goes_through_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master_port", "29655"]
    done = run([*launch, str(tmp_path / "script.py"), str(tmp_path / "checkpoints")])
    assert done.returncode == 0, done.stderr
    assert "same" in done.stdout


# Accelerate shards on accelerators only; told that this is one, it takes the same way over gloo.
THROUGH_ACCELERATE = """
import sys
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from sightline.cli.main import main
from sightline.engine import train as engine, trainer

make, ask, answers = engine.make_accelerator, trainer.is_sharded, []

def sharding(run):
    accelerator = make(run)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="no_wrap")
    return accelerator

def asked(model):
    answers.append(ask(model))
    return answers[-1]

engine.make_accelerator, trainer.is_sharded = sharding, asked
status = main(sys.argv[1:])
assert answers == [True], answers
sys.exit(status)
"""


def test_a_sharded_run_is_the_same_run(tmp_path: Path) -> None:
    """Stopped in the middle of an epoch and resumed, it has the losses and scores of one process."""
    (tmp_path / "script.py").write_text(THROUGH_ACCELERATE)
    images = make_images(tmp_path / "images", train=16)
    exact = {"model": {"drop_path": 0.0}, "augment": {"erase": 0.0}, "ema": {"decay": 0.0}}
    recipe = write_recipe(tmp_path / "recipe.yaml", batch={"size": 16}, optim={"lr": 3e-3, "clip": 1.0}, **exact)
    assert warm.run(command(recipe, images, tmp_path / "one")[3:]).returncode == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master_port", "29656"]
    for more in (["--run.max_steps", "2"], []):
        arguments = command(recipe, images, tmp_path / "two", *more)[3:]
        done = run([*launch, str(tmp_path / "script.py"), *arguments])
        assert done.returncode == 0, done.stderr
        (tmp_path / "two/done.json").unlink()
    assert "resuming from" in done.stdout
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert two["train_loss"] == pytest.approx(one["train_loss"], rel=1e-5)
        assert two["val_loss"] == pytest.approx(one["val_loss"], rel=1e-4)
        assert two["top1"] == one["top1"]
