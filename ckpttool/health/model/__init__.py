"""The nouns of health: questions, answers, what logs say of a training, and what follows for its checkpoints."""
