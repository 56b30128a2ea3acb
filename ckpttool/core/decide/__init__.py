"""Pure rules: nouns in, nouns out; no clock, no file, no tensor."""
