"""States of models that are sharded over processes, as FSDP does: written whole, and read back by every process."""

import sys
from pathlib import Path

from tests.engine.tiny import run

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
