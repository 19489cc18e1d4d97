"""Change the balance of skip and branch: take normalization out of any residual network."""
