"""The files of the page: those of this package, and those it shares with the reports of runs."""

from pathlib import Path

__all__ = ["ASSETS"]

FOLDERS = (Path(__file__).parent / "web", Path(__file__).parents[1] / "engine" / "report" / "web")
ASSETS = {path.name: path for folder in FOLDERS for path in sorted(folder.iterdir()) if path.is_file()}
