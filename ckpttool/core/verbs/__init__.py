"""The functions behind the commands of the main job, which take and return frozen values and print nothing."""
