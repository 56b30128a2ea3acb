"""What the library answers about guarded trainings."""
