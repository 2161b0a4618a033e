"""The blocks of a model, and hidden states of its frozen ones, kept."""
