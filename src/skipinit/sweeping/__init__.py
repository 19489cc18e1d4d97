"""Many trainings as one experiment: axes become trials, a store keeps their results, cells sum them up."""
