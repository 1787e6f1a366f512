"""Candidate generators: one strategy a file; the file's name is the strategy's name."""
