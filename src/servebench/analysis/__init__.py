"""Statistics, validity, comparison, fairness, recommendation."""
