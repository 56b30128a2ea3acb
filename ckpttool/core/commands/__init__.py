"""The command line of the main job, and the components of every command: options, help, output, progress."""
