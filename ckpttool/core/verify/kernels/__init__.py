"""Pure functions over buffers: checksums, hashes and statistics. No file is opened here."""
