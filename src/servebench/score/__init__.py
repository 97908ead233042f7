"""What may be concluded from numbers: intervals, doubts, comparison."""
