"""Whether a resume worked, by the logs of both runs."""
