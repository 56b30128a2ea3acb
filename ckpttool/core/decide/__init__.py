"""Pure rules, which turn nouns into nouns and use no clock, file or tensor."""
