"""Accuracies in percent that were published for the Long Range Arena, at the size of the recipes `lra_*`.

From Nystromformer: A Nystrom-Based Algorithm for Approximating Self-Attention (AAAI 2021), as the SOFT++ paper (IJCV
2024) quotes them.
"""

TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
PUBLISHED: dict[str, dict[str, float]] = {
    name: dict(zip(TASKS, scores, strict=True))
    for name, scores in {
        "Transformer": (37.1, 65.0, 79.4, 38.2, 74.2),
        "Linformer": (37.3, 55.9, 79.4, 37.8, 67.6),
        "Performer": (18.8, 63.8, 78.6, 37.1, 69.9),
        "Nystromformer": (37.2, 65.5, 79.6, 41.6, 70.9),
    }.items()
}
# What they are here, with the options that they were published with.
MECHANISMS = {
    "Transformer": "softmax",
    "Linformer": "linformer(rank=256)",
    "Performer": "performer(features=256)",
    "Nystromformer": "nystromformer(landmarks=128,kernel=35)",
}
