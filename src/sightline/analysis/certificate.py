"""Whether attention tells queries apart: a certificate for every head of a block.

Bridging the Divide: Reconsidering Softmax and Linear Attention (NeurIPS 2024). Softmax is injective in the query if
[K, 1] has full column rank; InLine if phi is injective and [phi(K), 1] has full column rank; linear attention never.
A head that is not injective comes with two different queries whose scores, computed by the mechanism, are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from sightline.analysis.capture import BlockCall, CoreCall
from sightline.analysis.rank import singular_values
from sightline.analysis.study import Facts, Study, Subject, short, telling_blocks
from sightline.layers.core import Place
from sightline.layers.feature_map import FeatureMap
from sightline.ops.feature_maps import FEATURE_MAPS

INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda y: y,
    "leaky_relu": lambda y: torch.where(y < 0, y / 0.01, y),
    "elu1": lambda y: torch.where(y > 1, y - 1, y.log()),
    "exp": lambda y: 5 * y.log(),
}  # of the feature maps that are injective
POSITIVE = ("elu1", "exp")  # whose values are
INJECTIVE, NOT_INJECTIVE, UNKNOWN = "injective", "not injective", "no statement"


@dataclass(frozen=True)
class Certificate:
    """One head in its worst window.

    Args:
        rank: numerical rank of [phi(K), 1].
        columns: its columns, the rank that is needed.
        smallest: its smallest singular value; the closer to zero, the nearer to confusion.
        verdict: injective, not injective, or no statement if the papers make none.
        queries: two different queries with the same scores, if there are such.
        distance: between them, over the length of the first.
        difference: the largest between their scores, as computed by the mechanism, over the largest score.
    """

    head: int
    rank: int
    columns: int
    smallest: float
    verdict: str
    queries: tuple[list[float], list[float]] | None = None
    distance: float | None = None
    difference: float | None = None


@torch.no_grad()
def certify(block: BlockCall) -> list[Certificate]:
    """A certificate for every head of a block."""
    found: list[Certificate] = []
    for part in (call.to(torch.float64) for call in block.parts):
        values, window = _spectrum(part)
        for head in range(values.shape[0]):
            found.append(_certificate(part, int(window[head]), head, len(found), values[head]))
    return found


def _keys(part: CoreCall, window: int) -> Tensor:
    """The keys (1, m, H, D) of a window that count: padding may be hidden by a mask or by a bias."""
    counts = part.place.counts(part.k)[window] & (part.key_positions[window] > 0)
    return part.k[window : window + 1, counts]


def _key_matrix(part: CoreCall, window: int) -> Tensor:
    """[phi(K), 1] (H, m, D + 1) of the keys that count; phi is the identity if the mechanism has none."""
    keys, phi = _keys(part, window), part.core.feature_map
    keys = (keys if phi is None else phi(keys))[0].transpose(0, 1)
    return torch.cat([keys, torch.ones_like(keys[..., :1])], -1)


def _spectrum(part: CoreCall) -> tuple[Tensor, Tensor]:
    """Singular values (H, D + 1) of each head's worst window, and which window that is."""
    columns = part.k.shape[3] + 1
    found = []
    for window in range(part.windows):
        values = singular_values(_key_matrix(part, window))
        found.append(torch.nn.functional.pad(values, (0, columns - values.shape[1])))  # fewer keys than columns
    stacked = torch.stack(found)  # windows H D+1
    worst = stacked[..., -1].argmin(0)
    return stacked[worst, torch.arange(stacked.shape[1], device=worst.device)], worst


def _certificate(part: CoreCall, window: int, head: int, number: int, values: Tensor) -> Certificate:
    columns, keys = len(values), part.k.shape[1]
    noise = torch.finfo(torch.float32).eps  # of the model that made the keys
    rank = int((values > values[0] * max(columns, keys) * noise).sum())
    core, known = part.core, (number, rank, columns, float(values[-1]))
    if core.injective is None:
        return Certificate(*known, UNKNOWN)
    if core.injective and rank == columns and _phi(part) in INVERSES:
        return Certificate(*known, INJECTIVE)
    try:
        pair = _pair(part, window, head, rank < columns)
    except torch.linalg.LinAlgError:  # an affine map whose matrix is singular
        pair = None
    if pair is None:
        return Certificate(*known, UNKNOWN if core.feature_map is None else NOT_INJECTIVE)
    scores = _scores(part, window, head, pair)
    difference = float((scores[0] - scores[1]).abs().max() / scores.abs().max().clamp(min=1e-300))
    distance = float((pair[1] - pair[0]).norm() / pair[0].norm().clamp(min=1e-300))
    return Certificate(*known, NOT_INJECTIVE, (pair[0].tolist(), pair[1].tolist()), distance, difference)


def _phi(part: CoreCall) -> str:
    return "identity" if part.core.feature_map is None else part.core.feature_map.phi


def _pair(part: CoreCall, window: int, head: int, deficient: bool) -> Tensor | None:
    """Two different queries (2, D) with the same scores, made from a query of the image; None if none is known."""
    feature_map, phi = part.core.feature_map, _phi(part)
    queries = part.q[window, :, head]
    query = queries[queries.norm(dim=-1).argmax()]
    if feature_map is not None and not part.core.injective:
        return torch.stack([query, longer_twin(feature_map, query, head)])
    if feature_map is not None and phi not in INVERSES:
        return _below_zero(feature_map, query, head)
    if not deficient:
        return None
    keys = _key_matrix(part, window)[head]
    null = torch.linalg.eigh(keys.T @ keys).eigenvectors[:-1, 0]  # phi(K) null is the same for all keys
    return _moved(phi, query, null / null.norm().clamp(min=1e-300))


def longer_twin(feature_map: FeatureMap, query: Tensor, head: int) -> Tensor:
    """The query p with phi(p) = 2 phi(q), to which linear attention gives the scores of q."""
    phi = feature_map.phi
    if phi in INVERSES:
        return INVERSES[phi](2 * FEATURE_MAPS[phi](query))
    weight, bias = _affine(feature_map, query, head)
    return torch.linalg.solve(weight, 2 * (weight @ query + bias) - bias)


def _affine(feature_map: FeatureMap, query: Tensor, head: int) -> tuple[Tensor, Tensor]:
    """Matrix (D, D) and bias (D,) of a head before relu; identity and zero if there are none."""
    affine = feature_map.affine()
    if affine is None:
        return torch.eye(len(query), dtype=query.dtype, device=query.device), torch.zeros_like(query)
    weight, bias = affine
    return weight[head].double(), bias[head].double()


def _below_zero(feature_map: FeatureMap, query: Tensor, head: int) -> Tensor:
    """Two queries whose least coordinate lies below zero, at different depths: relu maps both to zero there."""
    weight, bias = _affine(feature_map, query, head)
    features = weight @ query + bias
    least = features.argmin()
    twins = []
    for depth in (1, 2):
        moved = features.clone()
        moved[least] = -depth * (1 + features[least].abs())
        twins.append(torch.linalg.solve(weight, moved - bias))
    return torch.stack(twins)


def _moved(phi: str, query: Tensor, direction: Tensor) -> Tensor:
    """q and the query whose features are moved along a direction, as far as the range of phi allows."""
    start = FEATURE_MAPS[phi](query)
    step = float(start.norm().clamp(min=1.0))
    while phi in POSITIVE and bool((start + step * direction <= 0).any()):
        step /= 2
    return torch.stack([query, INVERSES[phi](start + step * direction)])


def _scores(part: CoreCall, window: int, head: int, pair: Tensor) -> Tensor:
    """The scores (2, M) that the mechanism itself gives two queries of a head."""
    one, keys = slice(window, window + 1), _keys(part, window)
    q = part.q[one, :1].expand(-1, 2, -1, -1).clone()
    q[0, :, head] = pair
    place = Place(part.place.grid, part.place.context[one], part.place.prefix)
    return part.core.rows(q, keys, torch.arange(2, device=q.device), place)[0, head]


def study_certificates(subjects: Sequence[Subject]) -> Study:
    """Rank and smallest singular value of [phi(K), 1] in every layer, on the first image."""
    results: list[Facts] = []
    rows = []
    for subject in subjects:
        layers = []
        for block in telling_blocks(subject.model, subject.images[0]):
            heads = certify(block)
            worst = min(heads, key=lambda head: (head.rank, head.smallest))
            differences = [head.difference for head in heads if head.difference is not None]
            layers.append({"block": block.name, "mechanism": block.mechanism, "heads": [asdict(h) for h in heads]})
            rows.append([
                subject.title, short(block.name), block.mechanism, str(worst.rank), str(worst.columns),
                f"{worst.smallest:.3g}", worst.verdict, f"{max(differences):.1e}" if differences else "-",
            ])  # fmt: skip
        results.append({"title": subject.title, "layers": layers})
    return Study(
        "certificates", "Whether each layer separates queries", {"subjects": results}, {},
        ("model", "layer", "mechanism", "rank", "of", "smallest singular value", "verdict", "pair differs by"),
        rows,
        ["Of the head that is nearest to confusion, on the first image. Softmax and InLine are injective where "
         "[phi(K), 1] has full column rank (and phi is injective); linear attention never is: the pair is two "
         "different queries whose scores were both computed, and the last column is their largest difference over the "
         "largest score."],
    )  # fmt: skip
