"""Runs of a study on other machines: Slurm and Ray, what is leased on a machine, and who is at work."""
