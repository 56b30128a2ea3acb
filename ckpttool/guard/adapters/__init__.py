"""The guard in trainers, each in a module that alone imports it."""
