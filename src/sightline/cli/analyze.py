"""`sightline analyze`: instruments that look inside attention. Each is a command of its own."""

from sightline.cli import analyze_injectivity, analyze_locality, analyze_maps, analyze_paper, analyze_spectra
from sightline.cli.options import Group

COMMAND = Group(
    {
        "maps": analyze_maps.COMMAND,
        "injectivity": analyze_injectivity.COMMAND,
        "locality": analyze_locality.LOCALITY,
        "masking": analyze_locality.MASKING,
        "newton": analyze_spectra.NEWTON,
        "rank": analyze_spectra.RANK,
        "memory": analyze_spectra.MEMORY,
        "paper": analyze_paper.COMMAND,
    },
    noun="instrument",
    help="look inside attention: maps, injectivity, locality, rank and more",
    description=(
        "Look inside attention: on any model, mechanism and image size, with weights or without. Pictures are written "
        "as PNG and SVG, the numbers behind them as JSON."
    ),
    examples=(
        "  sightline analyze maps photo.jpg --checkpoint runs/quick --query 0.3,0.6\n"
        "  sightline analyze injectivity --checkpoint runs/quick\n"
        "  sightline analyze paper inline --checkpoint runs/quick --out page\n"
        "`sightline analyze WHAT --help` says more about each."
    ),
)
