"""The functions behind the commands of the main job: each takes and returns frozen values, and prints nothing."""
