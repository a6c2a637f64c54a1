"""What models cost."""

from sightline.bench.cost import Cost, measure_cost

__all__ = ["Cost", "measure_cost"]
