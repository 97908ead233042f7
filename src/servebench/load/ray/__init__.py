"""Load workers on the nodes of a Ray cluster."""
