"""The paper's networks: schemes as data, blocks as equations."""
