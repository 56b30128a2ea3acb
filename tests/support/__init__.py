"""What tests are made of: builders of trees, shards, logs and plans, ways to run a command, and misbehaving disks."""
