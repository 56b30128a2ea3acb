"""The command line of the main job, and what every command is made of: options, help, output, progress."""
