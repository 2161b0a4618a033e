"""What is trained on: tasks, where they come from, and the stream they arrive in."""
