"""sightline: vision transformers with linear-time attention.

Importing it registers every model with timm:

    import sightline, timm
    model = timm.create_model("inline_swin_tiny", img_size=512, num_classes=10)

Everything that the command line does is a function here: `load`, `train`, `evaluate`, `predict`, `attention_maps`,
`explore`, `convert`, `export`, `benchmark`, `download`, and `create_model` and `list_models` of timm with our models;
`measure_rank`, `roll_up` and the other instruments are those of `sightline.analysis`. See docs/python.md.
"""

import os
from importlib import import_module

from sightline.util.provenance import VERSION

__version__ = VERSION

# The public names and where they are; each is imported when it is first used. __init__.pyi has their types.
_PUBLIC = {
    "Attention": "sightline.layers:Attention",
    "attention_maps": "sightline.analysis:attention_maps",
    "benchmark": "sightline.bench:benchmark",
    "capture": "sightline.analysis:capture",
    "certify": "sightline.analysis:certify",
    "convert": "sightline.hub:convert",
    "count_confusions": "sightline.analysis:count_confusions",
    "create_model": "sightline.models:create_model",
    "download": "sightline.models:download",
    "evaluate": "sightline.engine.evaluate:evaluate",
    "explore": "sightline.explorer:explore",
    "export": "sightline.hub.exporting:export",
    "layers": "sightline.layers",
    "linearize": "sightline.models.linearize:linearize",
    "list_models": "sightline.models:list_models",
    "load": "sightline.hub:load",
    "masked": "sightline.analysis:masked",
    "measure_locality": "sightline.analysis:measure_locality",
    "measure_newton": "sightline.analysis:measure_newton",
    "measure_peak": "sightline.analysis:measure_peak",
    "measure_rank": "sightline.analysis:measure_rank",
    "models": "sightline.models",
    "ops": "sightline.ops",
    "predict": "sightline.engine.predict:predict",
    "push_to_hf_hub": "sightline.engine.huggingface:push_to_hf_hub",
    "roll_up": "sightline.analysis:roll_up",
    "save_for_hf": "sightline.engine.huggingface:save_for_hf",
    "train": "sightline.engine.train:train",
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    found = import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return sorted(__all__)


# timm has no plugins: its models are those that were imported. SIGHTLINE_REGISTER=0 skips this, and with it torch and
# timm, until something imports `sightline.models`; the command `sightline` starts faster that way.
if os.environ.get("SIGHTLINE_REGISTER", "1") != "0":
    import_module("sightline.models")
