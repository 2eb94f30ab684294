"""Stage one: raw trajectories to clean ones, resampled by length, then token streams for the trainer."""
