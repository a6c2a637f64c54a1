"""Vision models with linear-time attention, registered with timm on import."""

from sightline.models.cswin import CSwin
from sightline.models.deit import DeiT
from sightline.models.factory import create_model, download, list_models
from sightline.models.hybrid import Hybrid
from sightline.models.pvt import PVT
from sightline.models.soft import Soft
from sightline.models.swin import Swin
from sightline.models.zoo import VARIANTS, Variant

__all__ = [
    "PVT", "VARIANTS", "CSwin", "DeiT", "Hybrid", "Soft", "Swin", "Variant", "create_model", "download", "list_models",
]  # fmt: skip
