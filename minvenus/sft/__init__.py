"""Stage one: raw trajectories to clean ones, resampled by length, then to token streams."""
