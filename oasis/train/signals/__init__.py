"""What a policy may ask to know of a candidate batch."""
