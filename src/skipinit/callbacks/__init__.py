"""Callbacks for trainers, and writers for logging tools."""
