"""The files beside the shards: meta, health, configs, logs."""
