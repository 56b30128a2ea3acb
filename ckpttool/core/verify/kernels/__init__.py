"""Pure work over buffers: checksums, hashes and numbers. No file is opened here."""
