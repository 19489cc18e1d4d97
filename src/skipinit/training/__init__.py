"""The paper's training protocol: one loop for one run or many at once."""
