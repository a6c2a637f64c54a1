"""Studies: apply the instruments to models and images; return numbers, a table and figures. One file per study."""

from sightline.analysis.studies.study import Study, Subject

__all__ = ["Study", "Subject"]
