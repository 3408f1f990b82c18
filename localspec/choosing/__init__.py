"""Chooses how a model runs on a machine: whether it fits, what steps cost, which drafter pays, which model to take."""
