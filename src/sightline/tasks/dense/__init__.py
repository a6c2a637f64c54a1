"""What tasks with an answer for every place of an image share: backbones, cards, loading."""
