"""See the balance of skip and branch: find the residual adds of any model, measure both sides."""
