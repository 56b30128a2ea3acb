"""Parse the command line, call one function of the library, show the answer, and exit."""
