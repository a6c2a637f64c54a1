"""Where images come from: folders, tar files, shards, the Hugging Face hub."""
