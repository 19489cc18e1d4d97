"""Where people train: callbacks for trainers, and writers for the tools that show their curves."""
