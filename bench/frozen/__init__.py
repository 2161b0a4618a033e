"""A cheap laboratory: the stream of a config on frozen hidden states, tens of seeds in minutes."""
