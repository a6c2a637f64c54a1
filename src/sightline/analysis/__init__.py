"""What attention does: instruments that take a model and an image, or what `capture` recorded of them.

| | |
|---|---|
| `attention_maps`, `roll_up` | weights of one query over all keys, by block or over all of them |
| `capture` | queries, keys and values of every block, and rows of its attention matrix |
| `certify`, `count_confusions`, `toy_scores` | whether attention tells queries apart |
| `measure_rank`, `measure_newton` | effective rank; convergence of SOFT's inverse |
| `measure_locality`, `masked` | attention to neighbors, and what a model loses without it |
| `measure_peak` | peak memory of a stack of blocks |

Example:
    >>> blocks = capture(model, image)  # (channels, height, width)
    >>> [rank.effective for rank in measure_rank(blocks)]
"""

from sightline.analysis.capture import BlockCall, CoreCall, attention_blocks, capture
from sightline.analysis.certificate import Certificate, certify
from sightline.analysis.confusions import Confusions, Thresholds, count_confusions
from sightline.analysis.locality import Locality, measure_locality
from sightline.analysis.maps import AttentionMap, Patch, attention_maps, block_grids, roll_up
from sightline.analysis.masking import Mask, masked
from sightline.analysis.memory import Peak, measure_peak
from sightline.analysis.newton import Newton, measure_newton
from sightline.analysis.rank import Rank, effective_rank, measure_rank
from sightline.analysis.toy import toy_scores

__all__ = [
    "AttentionMap", "BlockCall", "Certificate", "Confusions", "CoreCall", "Locality", "Mask", "Newton", "Patch", "Peak",
    "Rank", "Thresholds", "attention_blocks", "attention_maps", "block_grids", "capture", "certify", "count_confusions",
    "effective_rank", "masked", "measure_locality", "measure_newton", "measure_peak", "measure_rank", "roll_up",
    "toy_scores",
]  # fmt: skip
