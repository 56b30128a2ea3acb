"""The files that `postflight` reads: the logs of both runs, and the plan."""
