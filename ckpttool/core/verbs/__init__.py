"""The wiring of the main job: each verb takes and returns frozen values, and prints nothing."""
