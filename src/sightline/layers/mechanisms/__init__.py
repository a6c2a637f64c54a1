"""The attention mechanisms of sightline as cores, one file each."""
