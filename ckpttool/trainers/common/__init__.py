"""What several trainers share."""
