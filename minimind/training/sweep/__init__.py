"""The learning-rate sweep."""
