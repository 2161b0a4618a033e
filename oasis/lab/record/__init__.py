"""What a run leaves on disk: events, result, checkpoints; and who may write there."""
