"""Training, testing, prediction and the showcase as functions; the command lines in tools/ are their thin skin."""
