"""The instruments applied: models and images in; numbers, a table and figures out. One file a study."""

from sightline.analysis.studies.study import Study, Subject

__all__ = ["Study", "Subject"]
