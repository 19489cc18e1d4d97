"""The paper as data: its published numbers, and its statements as claims that measurements decide."""
