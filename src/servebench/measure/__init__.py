"""From bytes with stamps to numbers: every metric is defined here, once."""
