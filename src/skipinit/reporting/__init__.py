"""Measured beside published: tables, figures and claims as one page that needs nothing else."""
