"""A page without a server: the front end with all answers inside, one file that opens anywhere.

The data is JSON in a script element. Arrays are gzip in base64, which browsers unpack:

    rows, local, rollout    data: int8 [queries][heads][keys], and stats: float32 [queries][heads][4 + prefix]: the
                            value of one step, least, largest, sum, and the weights of the leading tokens; queries are
                            the patches row by row, then the class token if there is one
    confusion               data: uint8 [heads + 1][patches][patches], the index of the first of `options.scores` at
                            which two patches are confused, or their number; the last "head" is the mean of all
"""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from math import ceil

import numpy as np
import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, with_rows
from sightline.engine.study_models import StudyModel
from sightline.explorer.assets import ASSETS
from sightline.explorer.inside import Compared, compared_heads, confused_pairs, confused_shares, has_local, local_matrix
from sightline.explorer.session import Session
from sightline.explorer.views import Answer, View, quantized
from sightline.models.base import VisionModel
from sightline.util.errors import InputError

MAX_TOKENS = 625  # of a block
MAX_NUMBERS = 1 << 26  # of a panel
FINE, COARSE = 127, 31  # steps of a weight: coarse ones for more than 256 tokens, which take less space
STYLE = re.compile(r'<link rel="stylesheet" href="web/([\w.-]+)">')
SCRIPT = re.compile(r'<script src="web/([\w.-]+)"></script>')
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(session: Session, panels: Sequence[str], start: Mapping[str, object] | None = None) -> str:
    """The HTML of panels that were made.

    Args:
        start: what is shown first: block, head, view, query and so on, as in the address of the page.

    Raises:
        UnknownError: there is no such panel.
        InputError: they have too many tokens.
    """
    views = [session.view(panel) for panel in panels]
    wanted = [session.wanted(panel) for panel in panels]
    first = wanted[0]
    picture = session.pictures.find(first.image)
    made = [{**session.panel(item), "packed": _packed(view)} for item, view in zip(wanted, views, strict=True)]
    for panel in made:
        kept = zip(panel["blocks"], panel["packed"]["blocks"], strict=True)
        panel["blocks"] = [{**block, "rows": found is not None} for block, found in kept]
    options = session.options() | {
        "static": True,
        "samples": [picture.facts()],
        "sizes": [],
        "start": {
            **(start or {}),
            "image": picture.id,
            "size": list(first.size),
            "panels": [{"model": item.model, "attention": item.attention} for item in wanted],
        },
    }
    seen = b64encode(session.picture(picture.id, first.size)).decode()
    data = {
        "options": options, "image": picture.facts(), "seen": f"data:image/jpeg;base64,{seen}", "panels": made,
    }  # fmt: skip
    title = ", ".join(view.model.title for view in views)
    return assemble(f"{picture.title}: {title}", data)


def assemble(title: str, data: Answer) -> str:
    """The front end as one file, with its data."""
    html = ASSETS["index.html"].read_text()
    html = re.sub("<title>.*?</title>", lambda _: f"<title>{escape(title)}</title>", html, count=1)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    html = re.sub(r"<head>", lambda _: f"<head>\n{policy}", html, count=1)
    html = STYLE.sub(lambda found: f"<style>\n{ASSETS[found[1]].read_text()}</style>", html)
    inside = f'<script type="application/json" id="sightline-data">{in_script(data)}</script>\n'
    start = SCRIPT.search(html)
    if start is None:
        raise InputError("the front end has no script; install sightline again")
    html = html[: start.start()] + inside + html[start.start() :]
    return SCRIPT.sub(lambda found: f"<script>\n{_code(ASSETS[found[1]].read_text())}</script>", html)


def in_script(data: object) -> str:
    """JSON that ends no script element, whatever names are in it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _code(text: str) -> str:
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _packed(view: View) -> Answer:
    """Everything that the page may ask about a panel."""
    fitting = [block for block in with_rows(view.blocks) if block.tokens <= MAX_TOKENS]
    if not fitting:
        raise _too_many(view.model.title, min(block.tokens for block in view.blocks))
    count = sum(len(block.rows([block.prefix])) * block.tokens * block.keys for block in fitting)
    if count > MAX_NUMBERS:
        raise InputError(
            f"img_size: {view.model.title} has {count:,} weights, too many for one file; give a smaller img_size, or "
            f"attention of fewer heads"
        )
    names = {block.name for block in fitting}
    blocks = [_packed_block(block) if block.name in names else None for block in view.blocks]
    rolled = view.rolled
    rollout = None
    if rolled is not None and view.blocks[rolled["to"]].name in names:
        last = view.blocks[rolled["to"]]
        rollout = _packed_rows(view.rolled_rows()[None, _queries(last)], last.grid, last.prefix)
    return {"blocks": blocks, "rollout": rollout}


def check_tokens(model: StudyModel, size: Sequence[int]) -> None:
    """Reject a size that gives too many tokens before the model is run.

    Raises:
        InputError: no block has few enough.
    """
    network = model.model
    assert isinstance(network, VisionModel)
    stride = network.stem_stride if network.num_stages == 1 else network.final_stride
    tokens = ceil(size[0] / stride) * ceil(size[1] / stride)
    if tokens > MAX_TOKENS:
        raise _too_many(model.title, tokens)


def _too_many(title: str, tokens: int) -> InputError:
    return InputError(
        f"img_size: {title} has {tokens:,} tokens or more in every block; a page holds {MAX_TOKENS}; give a smaller one"
    )


def _packed_block(block: BlockCall) -> Answer:
    tokens, prefix, local = _queries(block), block.prefix, None
    if has_local(block):
        local = _packed_rows(local_matrix(block)[:, tokens], block.grid, 0)
    return {
        "rows": _packed_rows(block.rows(tokens).cpu(), block.key_grid, prefix),
        "local": local,
        "confusion": {str(int(centred)): _packed_confusion(block, centred) for centred in (False, True)},
    }


def _queries(block: BlockCall) -> list[int]:
    """Its tokens in the order of the page: patches, then the class token."""
    return [*range(block.prefix, block.tokens), *([0] if block.prefix else [])]


def _packed_rows(rows: Tensor, grid: Sequence[int], prefix: int) -> Answer:
    """Rows (heads, queries, prefix + keys)."""
    whole = rows.float().nan_to_num().transpose(0, 1)
    leading, weights = whole[..., :prefix], whole[..., prefix:]
    numbers, scale = quantized(weights, FINE if weights.shape[2] <= 256 else COARSE)
    stats = torch.stack([scale, weights.amin(2), weights.amax(2), whole.sum(2)], 2)
    return {
        "heads": len(rows), "grid": list(grid), "prefix": prefix, "data": _zipped(numbers.numpy()),
        "stats": _zipped(torch.cat([stats, leading], 2).numpy().astype("<f4")),
    }  # fmt: skip


def _packed_confusion(block: BlockCall, centred: bool) -> Answer:
    heads = [Compared(head, centred) for head in (*range(compared_heads(block)), None)]
    first = torch.stack([confused_pairs(block, head) for head in heads])
    return {"share": [confused_shares(block, head) for head in heads], "data": _zipped(first.numpy())}


def _zipped(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> str:
    return b64encode(gzip.compress(np.ascontiguousarray(array).tobytes(), 6, mtime=0)).decode()
