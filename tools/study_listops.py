"""Why a mechanism stays on the plateau of ListOps: `python tools/study_listops.py --out study.json`.

Models of ListOps leave the plateau at 17 % when they find the first operator, one token of up to 2,000. It measures:

- `start`: at initialization, on generated ListOps, how much of the output of attention depends on the query (the share
  of its deviation over the tokens in its norm, without local terms), and the norms of the gradients by part, in float32
  and with autocast to bfloat16;
- `first`: the task reduced to its first step, to tell the first token of a sequence of random ones: updates until 90 %
  are right, by number of tokens.
"""

import argparse
import json
import math
import time
from typing import Any

import torch
from measuring import kept, write
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.layers.attention import Attention, project
from sightline.layers.core import Place
from sightline.models.sequence import SequenceEncoder
from sightline.tasks.sequences import listops

CLASSES = 10
RIGHT = 0.9
MECHANISMS = ("softmax", "linear", "inline", "inline(residual=false)", "soft_norm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="JSON file")
    parser.add_argument("--add", nargs="*", default=[], help="earlier files whose rows are kept, none measured again")
    parser.add_argument("--attention", action="append", help="by default five mechanisms")
    parser.add_argument("--what", choices=("start", "first"), action="append")
    parser.add_argument("--tokens", type=int, action="append", help="for `first`; by default 32, 128 and 512")
    parser.add_argument("--rate", type=float, action="append", help="learning rates for `first`; by default 1e-3")
    parser.add_argument("--sharpness", type=float, action="append", help="initial factors of the scores, for `first`")
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=150.0, help="per training")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = [row for path in options.add for row in kept(path)]
    if options.add:
        write(options.out, __file__, rows, device)
        return
    for attention in options.attention or MECHANISMS:
        if "start" in (options.what or ("start", "first")):
            rows.append({"what": "start", "attention": attention, **start(attention, device)})
            print(json.dumps(rows[-1]), flush=True)
        if "first" not in (options.what or ("start", "first")):
            continue
        for tokens in options.tokens or (32, 128, 512):
            for rate in options.rate or (1e-3,):
                for sharpness in options.sharpness or (1.0,):
                    found = first(attention, tokens, rate, sharpness, options.updates, options.seconds, device)
                    rows.append({"what": "first", "attention": attention, **found})
                    print(json.dumps(rows[-1]), flush=True)
    if options.out:
        write(options.out, __file__, rows, device)


def start(attention: str, device: torch.device) -> dict[str, Any]:
    """The share of the output that depends on the query, and gradients, of a new model on a batch of ListOps."""
    tokens = listops.generate(16, 0)
    ids, labels = (tensor.to(device) for tensor in tokens.batch(torch.arange(16).numpy(), 2000))
    made: dict[str, Any] = {"tokens": float(tokens.lengths.mean())}
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model = SequenceEncoder(15, 2048, CLASSES, attention).to(device)
        shares: list[float] = []
        for module in model.modules():
            if isinstance(module, Attention):
                module.register_forward_pre_hook(lambda m, a, s=shares: s.append(_share(m, *a)))
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            loss = F.cross_entropy(model(ids.int()).float(), labels)
        loss.backward()
        made[precision] = {"loss": round(loss.item(), 4), "depends_on_query": shares, "gradients": _gradients(model)}
    return made


@torch.no_grad()
def _share(module: Attention, x: Tensor, grid: Any, prefix: int, key_mask: Tensor | None = None, **_: Any) -> float:
    """Of the output of attention without its local term: deviation over the queries over its norm."""
    with torch.autocast(x.device.type, enabled=False):
        queries = torch.arange(0, x.shape[1], 16, device=x.device)
        place = Place(grid, x.float(), prefix, key_mask)
        q, k, v = (part.float() for part in project(module.qkv, module.core.num_heads, x.float()))
        rows = module.core.rows(q, k, queries, place)
        out = torch.einsum("bhqm,bmhd->bqhd", rows, v.masked_fill(place.hidden(k), 0))
    return float((out - out.mean(1, keepdim=True)).norm() / out.norm())


def _gradients(model: nn.Module) -> dict[str, float]:
    """Norms by part: queries and keys, values, output, MLP, embeddings, in the order of the blocks."""
    found: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        parts = {name: parameter.grad}
        if name.endswith("qkv.weight"):
            thirds = parameter.grad.split(parameter.shape[1])
            parts = dict(zip([f"{name}.{part}" for part in "qkv"[-len(thirds) :]], thirds, strict=True))
        for key, grad in parts.items():
            if key.endswith(("weight", ".q", ".k", ".v", "pos_embed")) and "norm" not in key:
                found[key] = float(f"{grad.norm().item():.3g}")
    return found


def first(
    attention: str, tokens: int, rate: float, sharpness: float, updates: int, seconds: float, device: torch.device
) -> dict[str, Any]:
    """Updates until a model tells the first token of a sequence; None if it does not."""
    torch.manual_seed(0)
    model = SequenceEncoder(CLASSES, tokens, CLASSES, attention, masked=False).to(device)
    for module in model.modules():
        if isinstance(module, Attention) and sharpness != 1:
            dim = module.core.dim
            module.qkv.weight.data[: 2 * dim] *= math.sqrt(sharpness)  # queries and keys
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    begin, right, curve = time.perf_counter(), 0.0, []
    for update in range(1, updates + 1):
        ids = torch.randint(1, CLASSES + 1, (64, tokens), device=device)
        logits = model(ids)
        loss = F.cross_entropy(logits, ids[:, 0] - 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right += 0.05 * (float((logits.argmax(1) == ids[:, 0] - 1).float().mean()) - right)
        if update % 50 == 0:
            curve.append([update, round(right, 3), round(loss.item(), 3)])
        if right > RIGHT or time.perf_counter() - begin > seconds:
            break
    found = update if right > RIGHT else None
    about = {"tokens": tokens, "rate": rate, "sharpness": sharpness, "updates": found, "stopped": update}
    return about | {"right": round(right, 3), "curve": curve}


if __name__ == "__main__":
    main()
