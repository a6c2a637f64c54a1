"""The types of the public names; see __init__.py."""

from sightline import layers as layers
from sightline import models as models
from sightline import ops as ops
from sightline.analysis import attention_maps as attention_maps
from sightline.analysis import capture as capture
from sightline.analysis import certify as certify
from sightline.analysis import count_confusions as count_confusions
from sightline.analysis import masked as masked
from sightline.analysis import measure_locality as measure_locality
from sightline.analysis import measure_newton as measure_newton
from sightline.analysis import measure_peak as measure_peak
from sightline.analysis import measure_rank as measure_rank
from sightline.analysis import roll_up as roll_up
from sightline.bench import benchmark as benchmark
from sightline.engine.evaluate import evaluate as evaluate
from sightline.engine.huggingface import push_to_hf_hub as push_to_hf_hub
from sightline.engine.huggingface import save_for_hf as save_for_hf
from sightline.engine.predict import predict as predict
from sightline.engine.train import train as train
from sightline.explorer import explore as explore
from sightline.hub import convert as convert
from sightline.hub import load as load
from sightline.hub.exporting import export as export
from sightline.layers import Attention as Attention
from sightline.models import create_model as create_model
from sightline.models import download as download
from sightline.models import list_models as list_models
from sightline.models.linearize import linearize as linearize

__version__: str
