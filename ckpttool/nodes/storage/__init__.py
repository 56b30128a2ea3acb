"""Storages that write down what another one answers, share its files out, and answer again from what was written."""
