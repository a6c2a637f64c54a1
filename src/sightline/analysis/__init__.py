"""What attention does."""
